//! Tokenizer of the `tokenizers` crate. Its construction takes as long as encoding two megabytes of text. So a
//! background thread constructs it, while simple words are already encoded without it.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tokenizers::pipeline::{EncodeOptions, PipelineToken, PipelineTokenizer};

/// Tokenizer, or the build error.
type Built = Result<PipelineTokenizer, String>;

/// Tokenizer that a background thread builds.
pub struct Library {
    building: Mutex<Option<JoinHandle<Built>>>,
    built: OnceLock<Built>,
    options: EncodeOptions,
}

impl Library {
    /// Starts to build the tokenizer that `json` describes.
    pub fn begin(json: impl FnOnce() -> Result<String, String> + Send + 'static) -> Self {
        let build = move || tokenizers::from_json(&json()?).map_err(|error| error.to_string());
        Self {
            building: Mutex::new(Some(std::thread::spawn(build))),
            built: OnceLock::new(),
            options: EncodeOptions::no_specials(),
        }
    }

    /// Waits for the build to finish.
    pub fn built(&self) -> &Built {
        self.built.get_or_init(|| {
            let building = self.building.lock().unwrap_or_else(PoisonError::into_inner).take();
            let joined = building.map(JoinHandle::join);
            joined.and_then(Result::ok).unwrap_or_else(|| Err("the build thread panicked".to_owned()))
        })
    }

    /// Appends the ids of `text`. Returns false, and appends nothing, if the library refuses the text.
    pub fn append(&self, text: &str, ids: &mut Vec<PipelineToken>) -> bool {
        let start = ids.len();
        let encoded = self.built().as_ref().is_ok_and(|it| it.encode_into(text, &self.options, ids).is_ok());
        if !encoded {
            ids.truncate(start);
        }
        encoded
    }
}
