//! Text for progress: sizes, rates and times left.

/// Formats the time left: `42 s`, `3:05`, `2:10:00`.
pub fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    let (hours, minutes, seconds) = (whole / 3600, whole % 3600 / 60, whole % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Formats a size in bytes with a decimal unit: `788 B`, `2.3 MB`, `734 GB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let bytes = bytes as f64;
    // A value of 999.5 or more would be rounded to 1000 of the smaller unit, so the larger unit is used.
    match UNITS.iter().find(|(unit, _)| bytes >= 0.9995 * unit) {
        Some((unit, name)) => {
            let value = bytes / unit;
            format!("{value:.*} {name}", if value < 99.95 { 1 } else { 0 })
        }
        None => format!("{bytes} B"),
    }
}

/// Formats a rate with two decimals if it is below 10, else without decimals: `5.27`, `602`.
pub fn rate(value: f64) -> String {
    format!("{value:.*}", if value < 10.0 { 2 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_the_digits_that_mean_something() {
        assert_eq!([42.0, 121.0, 7265.0].map(clock), ["42 s", "2:01", "2:01:05"]);
        let shown = [788, 2_263_197, 73_480_000_000, 999_960, 734_200_000_000].map(size);
        assert_eq!(shown, ["788 B", "2.3 MB", "73.5 GB", "1.0 MB", "734 GB"]);
        assert_eq!([602.3, 5.267, 0.04].map(rate), ["602", "5.27", "0.04"]);
    }
}
