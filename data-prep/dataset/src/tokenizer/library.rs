//! Tokenizer of the `tokenizers` crate. Its construction takes as long as encoding two megabytes of text. So a
//! background thread constructs it, while simple words are already encoded without it.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tokenizers::pipeline::{EncodeOptions, PipelineToken, PipelineTokenizer};

/// Tokenizer, or the build error.
pub type Built = Result<PipelineTokenizer, String>;

/// Tokenizer that a background thread builds.
pub struct Library {
    building: Mutex<Option<JoinHandle<Built>>>,
    built: OnceLock<Built>,
    options: EncodeOptions,
}

impl Library {
    /// Starts to build a tokenizer for which special tokens in a text are plain text.
    pub fn begin(build: impl FnOnce() -> Built + Send + 'static) -> Self {
        Self::with_options(build, EncodeOptions { encode_special_tokens: true, ..EncodeOptions::no_specials() })
    }

    /// Starts to build a tokenizer that finds special tokens in a text.
    pub fn begin_with_special(build: impl FnOnce() -> Built + Send + 'static) -> Self {
        Self::with_options(build, EncodeOptions::no_specials())
    }

    fn with_options(build: impl FnOnce() -> Built + Send + 'static, options: EncodeOptions) -> Self {
        Self { building: Mutex::new(Some(std::thread::spawn(build))), built: OnceLock::new(), options }
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
