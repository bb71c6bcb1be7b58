//! Generates a large varied text from a small text: `cargo run --release -p lambert-data-prep --example vary BYTES
//! FOLDER FILE...`.
//!
//! Writes files of 64 MB with blank lines between documents. A document has 3 to 200 random paragraphs of the given
//! files. One word in ten is replaced by a random word, so that no two documents are alike. The same arguments produce
//! the same bytes.

use std::error::Error;
use std::io::Write;
use std::path::Path;

use lambert_dataset::random::{Key, Rng};

/// Approximate size of a file, bytes.
const FILE: u64 = 64_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bytes, folder, files @ ..] = arguments.as_slice() else { return Err("expected BYTES FOLDER FILE...".into()) };
    let text = files.iter().map(std::fs::read_to_string).collect::<Result<String, _>>()?.replace('\r', "");
    let paragraphs: Vec<Vec<&str>> = text
        .split("\n\n")
        .map(|text| text.split_whitespace().collect())
        .filter(|words: &Vec<_>| words.len() > 5)
        .collect();
    let words: Vec<&str> = paragraphs.iter().flatten().copied().collect();
    std::fs::create_dir_all(folder)?;
    let mut left: u64 = bytes.parse()?;
    let mut rng = Key::new(1).rng();
    let mut number = 0;
    while left > 0 {
        let path = Path::new(folder).join(format!("{number:05}.txt"));
        let mut output = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
        let mut written = 0;
        while written < FILE.min(left) {
            let document = document(&paragraphs, &words, &mut rng);
            output.write_all(document.as_bytes())?;
            written += document.len() as u64;
        }
        output.flush()?;
        left = left.saturating_sub(written);
        number += 1;
    }
    Ok(())
}

fn document(paragraphs: &[Vec<&str>], words: &[&str], rng: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..rng.between(3, 200) {
        for word in &paragraphs[rng.below(paragraphs.len() as u64) as usize] {
            let other = rng.chance(0.1).then(|| words[rng.below(words.len() as u64) as usize]);
            text.push_str(other.unwrap_or(word));
            text.push(' ');
        }
        text.push('\n');
    }
    text.push('\n');
    text
}
