//! Validation of the columns of a row group before its rows are used. Another program may have written the shard.

use lambert_config::prep::Pair;

use super::{Manifest, NO_PAIR, Samples};

/// Validates the lengths of rows, in tokens.
///
/// # Errors
/// The message names the invalid row, its value, and the expected range.
pub fn lengths(manifest: &Manifest, column: &[i32]) -> Result<Vec<u16>, String> {
    let longest = manifest.sequence_length;
    let checked = column.iter().enumerate().map(|(row, &length)| match u16::try_from(length) {
        Ok(length) if (1..=longest).contains(&usize::from(length)) => Ok(length),
        _ => Err(format!("row {row} has {length} tokens, expected 1 to {longest}")),
    });
    checked.collect()
}

/// Validates the start positions of second segments.
///
/// # Errors
/// The message names the invalid row and its value.
pub fn starts(column: &[i32], lengths: &[u16]) -> Result<Vec<u16>, String> {
    let checked = column.iter().zip(lengths).enumerate().map(|(row, (&start, &length))| match u16::try_from(start) {
        Ok(start) if start <= length => Ok(start),
        _ => Err(format!("row {row}: the second segment starts at {start}, but the row has {length} tokens")),
    });
    checked.collect()
}

/// Returns the first problem in the samples of a row group. `repetition` has the repetition level of each token in
/// `input_ids`. A token with level 0 starts a row.
pub fn first_problem(manifest: &Manifest, samples: &Samples, repetition: &[i16]) -> Option<String> {
    // These loops read every token. They compute sums and maxima, which vectorize, and avoid searches, which do not.
    let rows: u32 = repetition.iter().map(|&level| u32::from(level == 0)).sum();
    if rows as usize != samples.rows() || samples.offsets.last() != Some(&samples.input_ids.len()) {
        return Some("the column length does not match input_ids".to_owned());
    }
    let size = manifest.vocabulary.size;
    if let Some(id) = samples.input_ids.iter().max().filter(|&&id| id as usize >= size) {
        return Some(format!("token ID {id} in a vocabulary of {size}"));
    }
    let pair = manifest.samples.pair;
    let possible = |label: u8| if pair == Pair::None { label == NO_PAIR } else { label <= 1 };
    let (row, label) = samples.pair_label.iter().enumerate().find(|(_, label)| !possible(**label))?;
    let found = if *label == NO_PAIR { "no pair label".to_owned() } else { format!("pair label {label}") };
    Some(format!("row {row} has {found}, expected {}", if pair == Pair::None { "none" } else { "0 or 1" }))
}
