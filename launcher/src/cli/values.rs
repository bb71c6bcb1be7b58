//! Parsers for argument values.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::{PathBufValueParser, TypedValueParser};
use lambert_data_prep::prep;

/// Default memory of a preparation, as command-line text.
pub static PREP_MEMORY: LazyLock<String> = LazyLock::new(|| format!("{}G", prep::DEFAULT_MEMORY >> 30));

/// Parses a byte count with an optional suffix K, M, G or T (powers of 1024).
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("expected a size such as 512M or 4G".to_owned()),
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.ok_or_else(|| "expected a size such as 512M or 4G".to_owned())
}

/// Returns a parser of the local path of an output. A URL would name a folder such as `s3:`.
pub fn local_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(refuse_url)
}

fn refuse_url(path: PathBuf) -> Result<PathBuf, String> {
    match path.to_str().and_then(|text| text.split_once(":/")) {
        Some((scheme, _)) if scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            Err("is a URL; expected a local path".to_owned())
        }
        _ => Ok(path),
    }
}

/// Parses `I/N` into a part index and the number of parts.
pub fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    numbers.filter(|(part, parts)| part < parts).ok_or_else(|| "expected I/N with I from 0 to N - 1".to_owned())
}

/// Parses a license identifier. The Hugging Face Hub writes them in lower case.
pub fn license(text: &str) -> Result<String, String> {
    match is_name(text) && !text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Ok(text.to_owned()),
        false => Err("expected an identifier in lower case such as apache-2.0, mit or other".to_owned()),
    }
}

/// Parses a language code: ISO 639, two or three letters, or `multilingual`.
pub fn language(text: &str) -> Result<String, String> {
    let is_code = matches!(text.len(), 2 | 3) && text.bytes().all(|byte| byte.is_ascii_lowercase());
    match is_code || text == "multilingual" {
        true => Ok(text.to_owned()),
        false => Err("expected a language code such as en, deu or multilingual".to_owned()),
    }
}

/// Parses the name of a model on the Hugging Face Hub: `ORGANIZATION/NAME`.
pub fn hub_model(text: &str) -> Result<String, String> {
    match text.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name)) {
        true => Ok(text.to_owned()),
        false => Err("expected ORGANIZATION/NAME, the name of a model on the Hugging Face Hub".to_owned()),
    }
}

/// True for letters, digits, `.`, `-` and `_`, with a letter or a digit first.
fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    text.bytes().all(is_part) && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preparation_memory_round_trips() {
        assert_eq!(bytes(&PREP_MEMORY), Ok(prep::DEFAULT_MEMORY));
    }

    #[test]
    fn an_output_is_a_local_path() {
        for path in ["model", "./a:b/c", "/tmp/s3:/x"] {
            assert_eq!(refuse_url(path.into()), Ok(path.into()));
        }
        for url in ["s3://bucket/model", "s3:/bucket/model", "file:///tmp/model", "az://a"] {
            assert!(refuse_url(url.into()).is_err(), "{url}");
        }
    }

    #[test]
    fn bytes_have_units_and_parts_are_counted_from_zero() {
        assert_eq!(
            ["7", "3k", "512M", "4GiB", "1TB"].map(|text| bytes(text).ok()),
            [Some(7), Some(3 << 10), Some(512 << 20), Some(4 << 30), Some(1 << 40)]
        );
        for wrong in ["", "G", "4X", "-1", "99999999999999999999", "99999999T"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(part("1/3"), Ok((1, 3)));
        for wrong in ["3/3", "1", "a/b", "1/0"] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_of_a_model_card_cannot_hold_markup() {
        assert_eq!(license("apache-2.0"), Ok("apache-2.0".to_owned()));
        assert_eq!([language("no"), language("deu")], [Ok("no".to_owned()), Ok("deu".to_owned())]);
        assert_eq!(hub_model("google/bert_uncased-1.5"), Ok("google/bert_uncased-1.5".to_owned()));
        for wrong in ["", "a b", "a\nb", "-a", "a: b", "<b>"] {
            assert!(license(wrong).is_err() && language(wrong).is_err() && hub_model(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["MIT", "Apache-2.0"] {
            assert!(license(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["runs/demo/checkpoints/step-1", "demo", "/demo", "demo/", "EN"] {
            assert!(hub_model(wrong).is_err() && language(wrong).is_err(), "{wrong:?}");
        }
    }
}
