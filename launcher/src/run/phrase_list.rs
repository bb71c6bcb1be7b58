//! Phrases that a run masks as a whole. The first start copies the list to the run, so that later starts use the same masks.

use std::fs::File;
use std::io::Read;

use lambert_store::Store;
use lambert_store::run::{MAX_PHRASES_BYTES, PHRASES};

use crate::failure::Failure;

/// Key of the configuration.
const KEY: &str = "objective.phrases";

/// The list cannot be used.
#[derive(Debug, thiserror::Error)]
enum PhrasesError {
    #[error("{KEY}: cannot read {path}")]
    Read { path: String, source: std::io::Error },
    #[error("{KEY}: {path} has more than {MAX_PHRASES_BYTES} bytes")]
    Size { path: String },
    #[error("{KEY}: {path} is not UTF-8 text: byte {byte} is invalid")]
    Text { path: String, byte: usize },
    #[error("{KEY}: {path} has no phrase, expected one in each line")]
    Empty { path: String },
}

/// Returns the list to store in the run, or `None` if the run keeps the list that it has, or has none. `path` is the file of the
/// configuration. With `replace`, a changed file replaces the stored list. A new run always takes the file.
pub fn to_store(path: Option<&str>, store: &Store, is_new: bool, replace: bool) -> Result<Option<Vec<u8>>, Failure> {
    let Some(path) = path else { return Ok(None) };
    if is_new {
        return read(path).map(Some).map_err(Failure::usage);
    }
    let stored = match store.get_at_most(PHRASES, MAX_PHRASES_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return read(path).map(Some).map_err(Failure::usage),
        Err(error) => return Err(Failure::failed(error)),
    };
    match read(path) {
        Ok(list) if list == stored => Ok(None),
        Ok(list) if replace => {
            tracing::info!("configuration changed: the run now uses the phrases in {path}");
            Ok(Some(list))
        }
        Err(error) if replace => Err(Failure::usage(error)),
        found => {
            let (what, stored) = (if found.is_ok() { "has changed" } else { "cannot be read" }, store.url());
            tracing::warn!(
                "{path} {what}; the run keeps its stored phrases ({stored}/{PHRASES}); to replace them, add \
                 --allow-change {KEY}"
            );
            Ok(None)
        }
    }
}

fn read(path: &str) -> Result<Vec<u8>, PhrasesError> {
    let path = path.to_owned();
    let mut bytes = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MAX_PHRASES_BYTES + 1).read_to_end(&mut bytes));
    if let Err(source) = read {
        return Err(PhrasesError::Read { path, source });
    }
    if bytes.len() as u64 > MAX_PHRASES_BYTES {
        return Err(PhrasesError::Size { path });
    }
    match std::str::from_utf8(&bytes) {
        Err(error) => Err(PhrasesError::Text { path, byte: error.valid_up_to() }),
        Ok(text) if text.trim().is_empty() => Err(PhrasesError::Empty { path }),
        Ok(_) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_keeps_its_list_unless_a_change_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("phrases.txt");
        let store = Store::open("memory://phrases/run").unwrap();
        let listed = |replace| to_store(Some(path.to_str().unwrap()), &store, false, replace);
        assert_eq!(to_store(None, &store, true, false).unwrap(), None);
        assert!(listed(false).unwrap_err().to_string().contains("objective.phrases: cannot read"));
        for (content, message) in [(&b" \n"[..], "has no phrase"), (b"a\xff", "byte 1 is invalid")] {
            std::fs::write(&path, content).unwrap();
            let error = listed(false).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        std::fs::write(&path, "new york\n").unwrap();
        let list = listed(false).unwrap().unwrap();
        assert_eq!(list, b"new york\n");
        store.put(PHRASES, list.into()).unwrap();
        assert_eq!(listed(false).unwrap(), None);
        std::fs::write(&path, "san francisco\n").unwrap();
        assert_eq!(listed(false).unwrap(), None);
        assert_eq!(listed(true).unwrap().unwrap(), b"san francisco\n");
        let new = to_store(Some(path.to_str().unwrap()), &store, true, false);
        assert_eq!(new.unwrap().unwrap(), b"san francisco\n");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(listed(false).unwrap(), None);
        assert!(listed(true).is_err());
    }
}
