//! Encoding of token IDs in the work folder.

/// Bytes per token ID.
pub const fn width(vocabulary_size: usize) -> usize {
    if vocabulary_size <= 1 << 16 { 2 } else { 4 }
}

/// Appends `ids` to `bytes`, with `width` bytes each.
pub fn write(ids: &[u32], width: usize, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.resize(start + ids.len() * width, 0);
    let bytes = &mut bytes[start..];
    match width {
        2 => bytes.as_chunks_mut().0.iter_mut().zip(ids).for_each(|(bytes, &id)| *bytes = (id as u16).to_le_bytes()),
        _ => bytes.as_chunks_mut().0.iter_mut().zip(ids).for_each(|(bytes, &id)| *bytes = id.to_le_bytes()),
    }
}

/// Appends the ids in `bytes` to `ids`.
pub fn read(bytes: &[u8], width: usize, ids: &mut Vec<u32>) {
    match width {
        2 => ids.extend(bytes.as_chunks().0.iter().map(|&id| u32::from(u16::from_le_bytes(id)))),
        _ => ids.extend(bytes.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_in_both_widths() {
        for (size, expected, ids) in [(30_522, 2, [0, 30_521, 258]), (1 << 17, 4, [0, 131_071, 65_536])] {
            let (mut bytes, mut found) = (vec![7], vec![9]);
            write(&ids, width(size), &mut bytes);
            assert_eq!((width(size), bytes.len()), (expected, 1 + 3 * expected));
            read(&bytes[1..], expected, &mut found);
            assert_eq!(found[1..], ids);
        }
    }
}
