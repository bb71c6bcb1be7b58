//! Where ranks keep what they print, each on its own host, beside passing it on to the coordinator.

use std::path::{Path, PathBuf};

use lambert_config::run::Cluster;
use lambert_store::hash::sha256;

/// A run's name is cut to this length, bytes: file systems have names of 255.
const LONGEST_NAME: usize = 200;

/// The folder of an attempt of the run at `url`, one level below the run's own; `None` if no files are wanted.
pub fn folder(cluster: &Cluster, url: &str, attempt: u32) -> Option<PathBuf> {
    let place = match cluster.log_folder.as_str() {
        Cluster::NO_LOGS => return None,
        "" => PathBuf::from(format!("/tmp/lambert-logs-{}", rustix::process::geteuid().as_raw())),
        named => PathBuf::from(named),
    };
    let name = Path::new(url.trim_end_matches('/')).file_name().and_then(|name| name.to_str()).unwrap_or("run");
    // Runs of one name in two places are two runs.
    let run = format!("{}-{}", &name[..name.floor_char_boundary(LONGEST_NAME)], &sha256(url.as_bytes())[..8]);
    Some(place.join(run).join(format!("attempt-{attempt:06}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_folders_of_their_own() {
        let cluster = Cluster { log_folder: "/var/log/lambert".to_owned(), ..Cluster::default() };
        let of = |url: &str| folder(&cluster, url, 3).unwrap().to_str().unwrap().to_owned();
        let (one, other) = (of("s3://bucket/a/run/"), of("/data/run"));
        assert!(one.starts_with("/var/log/lambert/run-") && one.ends_with("/attempt-000003"), "{one}");
        assert!(other.starts_with("/var/log/lambert/run-") && other != one, "{other}");
        let long = of(&format!("/data/{}", "ü".repeat(127)));
        assert!(long.split('/').all(|name| name.len() <= 255) && long.contains(&"ü".repeat(100)), "{long}");
        let none = Cluster { log_folder: Cluster::NO_LOGS.to_owned(), ..Cluster::default() };
        assert_eq!(folder(&none, "/data/run", 3), None);
        let usual = folder(&Cluster::default(), "/data/run", 1).unwrap();
        assert!(usual.starts_with(format!("/tmp/lambert-logs-{}", rustix::process::geteuid().as_raw())), "{usual:?}");
    }
}
