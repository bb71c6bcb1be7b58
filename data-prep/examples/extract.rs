//! Extracts the prose of a MediaWiki dump on one thread: `cargo run --release -p lambert-data-prep --example extract
//! DUMP > PROSE`. The output is the input of sentence splitting in `lambert prep`.
//!
//! The output for an article is a line `<doc title="TITLE">`, one line per paragraph, and a line `</doc>`. The counts
//! of rejected pages are printed to standard error.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use lambert_config::prep::{Damaged, Source};
use lambert_data_prep::extract::Extracted;
use lambert_data_prep::source;

fn title(page: &[u8]) -> &str {
    let page = std::str::from_utf8(page).unwrap_or("");
    page.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>")).map_or("", |(title, _)| title)
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("expected a dump")?;
    let source = Source { path, format: "wikipedia".into(), damaged: Damaged::Skip, ..Source::default() };
    let mut output = std::io::BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    let mut left_out: BTreeMap<&str, u64> = BTreeMap::new();
    for file in source::find_files(std::slice::from_ref(&source), 1)? {
        let mut reader = source::open_reader(&source, &file, Arc::default())?;
        while let Some(raw) = reader.next()? {
            match source::extract(&source, &file, &raw, &mut |_| {})? {
                Extracted::Text(text) | Extracted::Sentences(text) => {
                    write!(output, "<doc title=\"{}\">\n{text}</doc>\n", title(&raw.bytes))?;
                }
                Extracted::Rejected(reason) => *left_out.entry(reason).or_default() += 1,
            }
        }
    }
    left_out.iter().for_each(|(reason, count)| eprintln!("{count} {reason}"));
    Ok(output.flush()?)
}
