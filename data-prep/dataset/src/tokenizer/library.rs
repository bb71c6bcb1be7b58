//! The tokenizer of the `tokenizers` crate. Building it takes as long as encoding two megabytes of text, so that it is built on a
//! thread of its own, while words that need no library are spelt already.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tokenizers::pipeline::PipelineTokenizer;

use super::json;

/// The tokenizer, or why there is none.
type Built = Result<PipelineTokenizer, String>;

/// See the module.
pub struct Library {
    building: Mutex<Option<JoinHandle<Built>>>,
    built: OnceLock<Built>,
}

impl Library {
    /// Begins to build it for a vocabulary.
    pub fn begin(pieces: Arc<Vec<String>>, lowercase: bool) -> Self {
        let build =
            move || tokenizers::from_json(&json::canonical(&pieces, lowercase)).map_err(|error| error.to_string());
        Self { building: Mutex::new(Some(std::thread::spawn(build))), built: OnceLock::new() }
    }

    /// Waits until it is built.
    pub fn built(&self) -> &Built {
        self.built.get_or_init(|| {
            let building = self.building.lock().unwrap_or_else(PoisonError::into_inner).take();
            let joined = building.map(JoinHandle::join);
            joined.and_then(Result::ok).unwrap_or_else(|| Err("its thread panicked".to_owned()))
        })
    }
}
