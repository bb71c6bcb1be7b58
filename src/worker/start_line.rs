//! Lines that each rank logs at its start.

/// Logs a line of the start of a rank: at level debug, except on rank 0.
pub fn log(rank: usize, line: &str) {
    match rank {
        0 => tracing::info!("{line}"),
        _ => tracing::debug!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rank_0_logs_at_level_info() {
        // If another test reached the event first, without a subscriber, tracing would disable the event permanently.
        let discard = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::sink);
        let _ = tracing::subscriber::set_global_default(discard.finish());
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
        tracing::subscriber::with_default(lines.with_writer(file.reopen().unwrap()).finish(), || {
            (0..3).for_each(|rank| log(rank, &format!("line of rank {rank}")));
        });
        let text = std::fs::read_to_string(file.path()).unwrap();
        let info: Vec<&str> = text.lines().filter(|line| line.contains("INFO")).collect();
        assert!(info.len() == 1 && info[0].ends_with("line of rank 0"), "{text}");
        assert_eq!(text.matches("DEBUG").count(), 2, "{text}");
    }
}
