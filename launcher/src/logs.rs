//! Log folders for worker output on each host. The output is also forwarded to the coordinator.
//!
//! - [`reader`]: reads the logs of an attempt on this host

pub mod reader;

use std::path::PathBuf;

use lambert_config::run::Cluster;
use lambert_store::host_paths;

/// Log folder of an attempt of the run at `url`. `None` if logging to files is disabled.
pub fn folder(cluster: &Cluster, url: &str, attempt: u32) -> Option<PathBuf> {
    let logs = match cluster.log_folder.as_str() {
        Cluster::NO_LOGS => return None,
        "" => host_paths::logs(),
        named => PathBuf::from(named),
    };
    Some(host_paths::attempt_logs(&logs, url, attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_folder_comes_from_the_configuration() {
        let of = |log_folder: &str| {
            let cluster = Cluster { log_folder: log_folder.to_owned(), ..Cluster::default() };
            folder(&cluster, "/data/run", 3)
        };
        assert_eq!(of(Cluster::NO_LOGS), None);
        assert!(of("/var/log/lambert").unwrap().starts_with("/var/log/lambert"));
        assert!(of("").unwrap().starts_with(host_paths::logs()));
    }
}
