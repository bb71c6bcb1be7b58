//! Lines of text as micro-batches of a model.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use lambert_config::run::TokenBudget;

use crate::data::MicroBatch;
use crate::data::batch::MaskedSample;
use crate::error::Error;
use crate::inference::loaded_model::LoadedModel;

/// Number of lines that are read and sorted by length together.
const CHUNK: usize = 4096;
/// Maximum length of a line, bytes.
const MAX_LINE: u64 = 1 << 24;

/// Lines of a file, read in chunks.
pub struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    /// Number of lines read so far.
    pub read: u64,
}

impl Lines {
    /// Opens a file. `-` is the standard input.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let reader: Box<dyn BufRead> = match path == Path::new("-") {
            true => Box::new(BufReader::new(std::io::stdin())),
            false => {
                let file = std::fs::File::open(path);
                Box::new(BufReader::new(file.map_err(|source| Error::Input { path: path.to_owned(), source })?))
            }
        };
        Ok(Self { path: path.to_owned(), reader, read: 0 })
    }

    /// Reads the next lines, without a byte-order mark. Returns no lines at the end of the file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is too long or not UTF-8.
    pub fn next_chunk(&mut self) -> Result<Vec<String>, Error> {
        let mut lines = Vec::new();
        while lines.len() < CHUNK {
            let mut bytes = Vec::new();
            let read = self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes);
            if read.map_err(|source| Error::Input { path: self.path.clone(), source })? == 0 {
                break;
            }
            self.read += 1;
            if bytes.len() as u64 == MAX_LINE && bytes.last() != Some(&b'\n') {
                let (path, line) = (self.path.display(), self.read);
                return Err(Error::Usage(format!("{path}, line {line}: longer than {MAX_LINE} bytes")));
            }
            let text = String::from_utf8(bytes).map_err(|error| {
                let (path, line, byte) = (self.path.display(), self.read, error.utf8_error().valid_up_to() + 1);
                Error::Usage(format!(
                    "{path}, line {line}, byte {byte}: invalid UTF-8; expected one text per line, in UTF-8"
                ))
            })?;
            let text = if self.read == 1 { text.trim_start_matches('\u{feff}') } else { &text };
            lines.push(text.trim_end_matches(['\n', '\r']).to_owned());
        }
        Ok(lines)
    }
}

/// Text as the model reads it.
pub struct EncodedText {
    /// Token ids with \[CLS\] and \[SEP\].
    pub ids: Vec<u32>,
    /// True if the text has more tokens than the model has positions.
    pub is_truncated: bool,
}

impl EncodedText {
    /// Tokenizes a text, and truncates it to the maximum length of the model.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn new(model: &LoadedModel, text: &str) -> Result<Self, Error> {
        let special = model.tokenizer.special();
        let mut tokens = model.tokenizer.encode(text);
        model.tokenizer.check()?;
        let most = model.config.model.positions.saturating_sub(2);
        let is_truncated = tokens.len() > most;
        tokens.truncate(most);
        Ok(Self { ids: [&[special.cls], tokens.as_slice(), &[special.sep]].concat(), is_truncated })
    }

    /// Number of tokens without \[CLS\] and \[SEP\].
    pub fn tokens(&self) -> usize {
        self.ids.len() - 2
    }
}

/// Divides samples into micro-batches of similar lengths. Each comes with the indices of its samples.
pub fn micro_batches(samples: &[MaskedSample]) -> Vec<(Vec<usize>, MicroBatch)> {
    let mut order: Vec<usize> = (0..samples.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(samples[*index].ids.len()));
    let mut rest = order.as_slice();
    let mut batches = Vec::new();
    while let Some(longest) = rest.first() {
        let width = samples[*longest].ids.len();
        let (own, others) = rest.split_at((TokenBudget::AUTO_ON_CPU / width).clamp(1, rest.len()));
        let of_batch: Vec<MaskedSample> = own.iter().map(|index| samples[*index].clone()).collect();
        batches.push((own.to_vec(), MicroBatch::padded(own, width, &of_batch)));
        rest = others;
    }
    batches
}
