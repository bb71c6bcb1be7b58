/// Maximum number of ranges in a list.
const RANGES: usize = 6;

/// Formats a list of ranks as ranges: `rank 2`, `ranks 0, 1`, `ranks 0-3, 7, 512-1023 (517 ranks)`. Lists at most six
/// ranges.
pub fn format_ranks(ranks: &[usize]) -> String {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if let [rank] = sorted[..] {
        return format!("rank {rank}");
    }
    let ranges: Vec<&[usize]> = sorted.chunk_by(|rank, next| rank.abs_diff(*next) == 1).collect();
    let shown: Vec<String> = ranges.iter().take(RANGES).map(|range| format_range(range)).collect();
    let more = if ranges.len() > RANGES { ", ..." } else { "" };
    let is_each_named = more.is_empty() && ranges.iter().all(|range| range.len() < 3);
    let count = if is_each_named { String::new() } else { format!(" ({} ranks)", sorted.len()) };
    format!("ranks {}{more}{count}", shown.join(", "))
}

fn format_range(range: &[usize]) -> String {
    match range {
        [first, _, .., last] => format!("{first}-{last}"),
        few => few.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ranks_have_ranges() {
        assert_eq!(format_ranks(&[2]), "rank 2");
        assert_eq!(format_ranks(&[0, 1]), "ranks 0, 1");
        let many: Vec<usize> = (0..4).chain([7]).chain(512..1024).rev().collect();
        assert_eq!(format_ranks(&many), "ranks 0-3, 7, 512-1023 (517 ranks)");
        let odd: Vec<usize> = (0..512).map(|rank| 2 * rank + 1).collect();
        assert_eq!(format_ranks(&odd), "ranks 1, 3, 5, 7, 9, 11, ... (512 ranks)");
    }
}
