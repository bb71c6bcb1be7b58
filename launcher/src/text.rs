//! Text for messages: durations, sizes, rates, counts, percentages, words of a shell and names of signals.

pub use lambert_progress::text::{clock, rate, size};

/// Formats a duration: `42 s`, `3 min 05 s`, `2 h 10 min`.
pub fn duration(seconds: f64) -> String {
    let whole = whole(seconds);
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Formats the time since an event: `42 s`, `3 min`, `2 h 10 min`.
pub fn age(seconds: f64) -> String {
    match whole(seconds) {
        minutes @ 60..3600 => format!("{} min", minutes / 60),
        _ => duration(seconds),
    }
}

fn whole(seconds: f64) -> u64 {
    seconds.max(0.0).round() as u64
}

/// Quotes a word for the shell if it needs quotes.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Formats a size in bytes in GiB, for the memory of a rank: `0.35 GiB`, `71.2 GiB`.
pub fn gib(bytes: u64) -> String {
    let value = bytes as f64 / f64::from(1 << 30);
    format!("{value:.*} GiB", if value < 9.995 { 2 } else { 1 })
}

/// Formats a fraction as a percentage with one decimal: `12.6%`.
pub fn percent(share: f64) -> String {
    // Without the sum, -0.0 would keep its sign.
    format!("{:.1}%", 100.0 * share + 0.0)
}

/// Formats a count with its noun: `1 restart`, `2 restarts`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Aligns the columns of a table: the first to the left, the others to the right.
pub fn align(rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
    let cell = |(column, cell): (usize, &String)| match column {
        0 => format!("{cell:<0$}", width(0)),
        _ => format!("{cell:>0$}", width(column)),
    };
    rows.iter().map(|row| row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ")).collect()
}

/// Name of a signal: `SIGKILL`.
pub fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_if_needed() {
        assert_eq!(shell_word("/data/bert-base"), "/data/bert-base");
        assert_eq!(shell_word("it's mine"), "'it'\\''s mine'");
    }

    #[test]
    fn durations_read_well() {
        let shown = [0.4, 59.6, 185.0, 7800.0].map(duration);
        assert_eq!(shown, ["0 s", "1 min 00 s", "3 min 05 s", "2 h 10 min"]);
        assert_eq!([42.0, 2012.0, 7800.0].map(age), ["42 s", "33 min", "2 h 10 min"]);
    }

    #[test]
    fn shares_and_memory_have_the_digits_that_mean_something() {
        assert_eq!([372 << 20, 76_452_000_000].map(gib), ["0.36 GiB", "71.2 GiB"]);
        assert_eq!(percent(0.1261), "12.6%");
    }

    #[test]
    fn nouns_and_signals_have_names() {
        assert_eq!([counted(1, "restart"), counted(0, "restart")], ["1 restart", "0 restarts"]);
        assert_eq!([9, 15, 11, 6, 7].map(signal_name), ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGBUS"]);
        assert_eq!(signal_name(34), "signal 34");
    }
}
