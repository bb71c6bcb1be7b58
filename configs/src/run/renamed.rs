//! Renamed keys.

/// Renamed keys, as (old, new).
pub const RENAMED: [(&str, &str); 13] = [
    ("cluster.device", "device.kind"),
    ("cluster.libtorch", "device.libtorch"),
    ("cluster.share_device", "device.share"),
    ("cluster.deterministic", "device.deterministic"),
    ("cluster.threads", "device.threads"),
    ("cluster.backend", "cluster.all_reduce.backend"),
    ("cluster.bucket_mb", "cluster.all_reduce.bucket_mb"),
    ("cluster.wire", "cluster.all_reduce.dtype"),
    ("cluster.canonical", "cluster.all_reduce.canonical"),
    ("cluster.overlap", "cluster.all_reduce.overlap"),
    ("cluster.restarts", "cluster.restart.limit"),
    ("cluster.restart_window_minutes", "cluster.restart.window_minutes"),
    ("cluster.patience_minutes", "cluster.restart.start_timeout_minutes"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigError, Layers, RunConfig};

    const STAGE: &str = "[[stage]]\nname = 'a'\ndata = '/d'\nsteps = 3\n";

    /// Section `[cluster]` with all old names.
    const OLD: &str = "[cluster]\nranks = 2\ndevice = 'cpu'\nlibtorch = '/l'\nshare_device = true\ndeterministic = true\nthreads = 3\n\
                       backend = 'mpi'\nbucket_mb = 7.0\nwire = 'bf16'\ncanonical = false\noverlap = true\nrestarts = 9\n\
                       restart_window_minutes = 5.0\npatience_minutes = 4.0\n";
    const NEW: &str = "[device]\nkind = 'cpu'\nlibtorch = '/l'\nshare = true\ndeterministic = true\nthreads = 3\n\
                       [cluster]\nranks = 2\n[cluster.all_reduce]\nbackend = 'mpi'\nbucket_mb = 7.0\ndtype = 'bf16'\n\
                       canonical = false\noverlap = true\n[cluster.restart]\nlimit = 9\nwindow_minutes = 5.0\n\
                       start_timeout_minutes = 4.0\n";

    fn parse(text: &str, sets: &[String]) -> Result<RunConfig, ConfigError> {
        Layers::from_sets(sets).parse(&format!("{text}{STAGE}"), "run.toml")
    }

    #[test]
    fn old_names_are_accepted() {
        let new = parse(NEW, &[]).unwrap();
        assert_eq!(parse(OLD, &[]).unwrap(), new);
        let written = toml::to_string(&new).unwrap();
        assert_eq!(Layers::default().parse::<RunConfig>(&written, "run.toml").unwrap(), new);
        let old_set = |(old, _): &(&str, &str)| {
            let key = old.strip_prefix("cluster.").unwrap();
            let line = OLD.lines().find(|line| line.split(' ').next() == Some(key)).unwrap();
            format!("cluster.{}", line.replace('\'', "\""))
        };
        let sets: Vec<String> = RENAMED.iter().map(old_set).chain(["cluster.ranks=2".to_owned()]).collect();
        assert_eq!(parse("", &sets).unwrap(), new, "all of them as --set");
    }

    #[test]
    fn both_names_are_rejected() {
        let message = parse("[cluster]\nrestarts = 1\nrestart.limit = 2\n", &[]).unwrap_err().to_string();
        let expected =
            "cluster.restarts: is the old name of cluster.restart.limit, which is also set: remove cluster.restarts";
        assert!(message.contains(expected), "{message}");
    }
}
