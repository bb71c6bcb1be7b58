//! Tokenizer of the `tokenizers` crate. Its construction takes as long as encoding two megabytes of text. So a
//! background thread constructs it, while simple words are already encoded without it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tokenizers::pipeline::PipelineTokenizer;

use super::json;

/// Tokenizer, or the build error.
type Built = Result<PipelineTokenizer, String>;

/// Tokenizer that a background thread builds.
pub struct Library {
    building: Mutex<Option<JoinHandle<Built>>>,
    built: OnceLock<Built>,
}

impl Library {
    /// Starts to build the tokenizer for a vocabulary.
    pub fn begin(pieces: Arc<Vec<String>>, lowercase: bool) -> Self {
        let build =
            move || tokenizers::from_json(&json::canonical(&pieces, lowercase)).map_err(|error| error.to_string());
        Self { building: Mutex::new(Some(std::thread::spawn(build))), built: OnceLock::new() }
    }

    /// Waits for the build to finish.
    pub fn built(&self) -> &Built {
        self.built.get_or_init(|| {
            let building = self.building.lock().unwrap_or_else(PoisonError::into_inner).take();
            let joined = building.map(JoinHandle::join);
            joined.and_then(Result::ok).unwrap_or_else(|| Err("the build thread panicked".to_owned()))
        })
    }
}
