//! Parsers for argument values.

use std::sync::LazyLock;

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
        _ => return Err("expected bytes as 512M or 4G".to_owned()),
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.ok_or_else(|| "expected bytes as 512M or 4G".to_owned())
}

/// Parses `I/N` into a part index and the number of parts.
pub fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    numbers.filter(|(part, parts)| part < parts).ok_or_else(|| "expected I/N with I from 0 to N - 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preparation_memory_round_trips() {
        assert_eq!(bytes(&PREP_MEMORY), Ok(prep::DEFAULT_MEMORY));
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
}
