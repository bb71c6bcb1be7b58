//! Prints the sentences of a source, one JSON string per line: `sentences FORMAT PATH`.

use std::io::Write;

use lambert_config::prep::Source;
use lambert_data_prep::extract::Extracted;
use lambert_data_prep::{sentences, source};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [format, path] = arguments.as_slice() else { return Err("expected: FORMAT PATH".into()) };
    let source = Source { path: path.clone(), format: format.as_str().into(), ..Source::default() };
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    for file in source::find_files(std::slice::from_ref(&source), 1)? {
        let mut documents = source::open_reader(&source, &file, Default::default())?;
        while let Some(raw) = documents.next()? {
            let mut found = Vec::new();
            let extracted = source::extract(&source, &file, &raw, &mut |_| {})?;
            match &extracted {
                Extracted::Text(text) => text.lines().for_each(|line| sentences::split(line, &mut found)),
                Extracted::Sentences(text) => found.extend(text.lines()),
                Extracted::Rejected(_) => {}
            }
            for sentence in found {
                writeln!(output, "{}", serde_json::to_string(sentence)?)?;
            }
        }
    }
    Ok(output.flush()?)
}
