//! Software versions of the programs of a run, compared before training starts.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// Git commit of this build, if the build set the variable `LAMBERT_GIT` (the Makefile does).
pub const GIT_COMMIT: Option<&str> = option_env!("LAMBERT_GIT");

/// Version of the control protocol.
pub const PROTOCOL: &str = "4";

/// Returns the version as `--version` prints it, with the git commit if the build recorded one: `0.2.0 (1a2b3c4d5e6f)`.
pub fn version_text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let version = env!("CARGO_PKG_VERSION");
        GIT_COMMIT.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
    });
    &TEXT
}

/// Software versions of a worker or of the coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Program version.
    pub program: String,
    /// Git commit of the build, if known.
    #[serde(default)]
    pub git: Option<String>,
    /// Version of the control protocol. Workers with protocol 2 do not send it.
    #[serde(default = "protocol_before_3")]
    pub protocol: String,
    /// libtorch version.
    #[serde(default)]
    pub libtorch: String,
    /// Name and version of the MPI library. Empty without MPI.
    #[serde(default)]
    pub mpi: String,
}

fn protocol_before_3() -> String {
    "2".to_owned()
}

impl Versions {
    /// Returns the versions of a worker that reports no versions. The protocol is 2, and the other values are empty.
    pub fn unknown() -> Self {
        Self { protocol: protocol_before_3(), ..Self::default() }
    }

    /// Returns the versions of this program, without those of libtorch and MPI.
    pub fn current() -> Self {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        Self { program, git: GIT_COMMIT.map(str::to_owned), protocol: PROTOCOL.to_owned(), ..Self::default() }
    }

    /// Returns the first version that differs, as (name, own value, other value). Skips values that are unknown on
    /// either side.
    pub fn first_difference<'a>(&'a self, other: &'a Self) -> Option<(&'static str, &'a str, &'a str)> {
        let git = |versions: &'a Self| versions.git.as_deref().unwrap_or_default();
        let pairs = [
            ("program", &*self.program, &*other.program),
            ("git commit", git(self), git(other)),
            ("control protocol", &*self.protocol, &*other.protocol),
            ("libtorch", &*self.libtorch, &*other.libtorch),
            ("MPI library", &*self.mpi, &*other.mpi),
        ];
        pairs.into_iter().find(|(_, one, other)| !one.is_empty() && !other.is_empty() && one != other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_returned_and_unknown_values_are_not_compared() {
        let own = Versions::current();
        assert_eq!(own.program, env!("CARGO_PKG_VERSION"));
        let rank = Versions { libtorch: "2.11.0".into(), mpi: "Open MPI 4.1.4".into(), ..own.clone() };
        assert_eq!(own.first_difference(&rank), None);
        let other = Versions { mpi: "Open MPI 5.0.11".into(), ..rank.clone() };
        assert_eq!(rank.first_difference(&other), Some(("MPI library", "Open MPI 4.1.4", "Open MPI 5.0.11")));
        let built = |git: &str| Versions { git: Some(git.into()), ..rank.clone() };
        assert_eq!(built("abc").first_difference(&built("abd")), Some(("git commit", "abc", "abd")));
        assert_eq!(built("abc").first_difference(&Versions { git: None, ..rank.clone() }), None);
        let before =
            Versions { program: own.program.clone(), ..serde_json::from_str(r#"{"program":"0.1.0"}"#).unwrap() };
        assert_eq!(own.first_difference(&before), Some(("control protocol", "4", "2")));
        assert_eq!(own.first_difference(&Versions::unknown()), Some(("control protocol", "4", "2")));
    }
}
