//! Tokenizer of the `tokenizers` crate. Its construction takes as long as encoding two megabytes of text. So a
//! background thread constructs it, while simple words are already encoded without it.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tokenizers::pipeline::{EncodeOptions, PipelineToken, PipelineTokenizer};

/// Tokenizer, or the build error.
pub type Built = Result<PipelineTokenizer, String>;

/// Text that every tokenizer must encode: letters, digits, spaces, punctuation and several scripts.
const PROBE: &str = "In 1984, she didn't pay $3.50 (or 2,5\u{a0}\u{20ac})!\n\tD\u{e9}j\u{e0}  vu \
                     \u{43f}\u{440}\u{438}\u{432}\u{435}\u{442} \u{6771}\u{4eac} \u{928}\u{92e} \u{1f642}\u{10ffff}";

/// Tokenizer that a background thread builds.
pub struct Library {
    building: Mutex<Option<JoinHandle<Built>>>,
    built: OnceLock<Built>,
    /// First error of an encoding.
    failure: OnceLock<String>,
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
        let probe_options = options.clone();
        let build = move || {
            let built = build()?;
            let encoded = built.encode_into(PROBE, &probe_options, &mut Vec::new());
            encoded.map(|()| built).map_err(|error| format!("it cannot encode text: {error}"))
        };
        let building = Mutex::new(Some(std::thread::spawn(build)));
        Self { building, built: OnceLock::new(), failure: OnceLock::new(), options }
    }

    /// First error of an encoding.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Waits for the build to finish. The tokenizer has then encoded a short text.
    pub fn built(&self) -> &Built {
        self.built.get_or_init(|| {
            let building = self.building.lock().unwrap_or_else(PoisonError::into_inner).take();
            let joined = building.map(JoinHandle::join);
            joined.and_then(Result::ok).unwrap_or_else(|| Err("the build thread panicked".to_owned()))
        })
    }

    /// Appends the ids of `text`. Returns false, and appends nothing, if the library fails. [`Library::failure`]
    /// then returns the error, unless the text has 4 GiB or more, which the library never encodes.
    pub fn append(&self, text: &str, ids: &mut Vec<PipelineToken>) -> bool {
        let start = ids.len();
        let Ok(built) = self.built() else { return false };
        let Err(error) = built.encode_into(text, &self.options, ids) else { return true };
        ids.truncate(start);
        if u32::try_from(text.len()).is_ok() {
            self.failure.get_or_init(|| error.to_string());
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::models::bpe::{BpeConfig, PipelineBPE};
    use tokenizers::pipeline::{PipelineModel, PipelinePreTokenizer};
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::tokenizer::SplitDelimiterBehavior;

    use super::*;

    /// Tokenizer that encodes an empty text only.
    fn broken() -> PipelineTokenizer {
        let expression = SplitPattern::Regex(r"\d+".to_owned());
        let split = Split::native(expression, SplitDelimiterBehavior::Isolated, false).unwrap();
        let vocab = [("a".to_owned(), 0)].into_iter().collect();
        PipelineTokenizer::from_parts(
            Default::default(),
            Vec::new(),
            PipelinePreTokenizer::Split(split),
            PipelineModel::BPE(PipelineBPE::from_config(BpeConfig { vocab, ..BpeConfig::default() }).unwrap()),
            Default::default(),
            None,
            Default::default(),
            None,
            None,
        )
    }

    #[test]
    fn a_tokenizer_that_encodes_no_text_is_refused() {
        let library = Library::begin(|| Ok(broken()));
        let Err(error) = library.built() else { panic!("built") };
        assert!(error.starts_with("it cannot encode text: ") && error.contains("regex"), "{error}");
    }

    #[test]
    fn the_error_of_an_encoding_is_kept() {
        let built = OnceLock::from(Ok(broken()));
        let library = Library {
            building: Mutex::new(None),
            built,
            failure: OnceLock::new(),
            options: EncodeOptions::no_specials(),
        };
        let mut ids = vec![PipelineToken::from(7)];
        assert!(!library.append("a 1", &mut ids));
        assert_eq!(PipelineToken::cast_slice(&ids), [7]);
        assert!(library.failure().unwrap().contains("regex"));
    }
}
