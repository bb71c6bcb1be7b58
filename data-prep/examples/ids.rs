//! Reads one JSON string per line and prints its token IDs as a JSON list: `ids VOCABULARY cased|uncased`.

use std::io::{BufRead, Write};

use lambert_dataset::tokenizer::Tokenizer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [vocabulary, case] = arguments.as_slice() else { return Err("expected: VOCABULARY cased|uncased".into()) };
    let tokenizer = Tokenizer::from_vocab_file(vocabulary, case == "uncased")?;
    let mut encoder = tokenizer.encoder();
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let text: String = serde_json::from_str(&line?)?;
        writeln!(output, "{}", serde_json::to_string(encoder.encode(&text))?)?;
    }
    tokenizer.check()?;
    Ok(output.flush()?)
}
