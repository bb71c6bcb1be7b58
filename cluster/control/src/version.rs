//! What a program is made of, so that a mixture is found before it trains.

use serde::{Deserialize, Serialize};

/// The commit that this program was built from, where the build said so (the Makefile does, by the variable
/// `LAMBERT_GIT`).
pub const GIT: Option<&str> = option_env!("LAMBERT_GIT");

/// Version of the control protocol that this program speaks.
pub const PROTOCOL: &str = "3";

/// What a rank runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The program's version.
    pub program: String,
    /// The commit it was built from, where its build said so.
    #[serde(default)]
    pub git: Option<String>,
    /// Version of the control protocol. Programs before 3 do not name it; all of them sent the secret with each report.
    #[serde(default = "unnamed_protocol")]
    pub protocol: String,
    /// libtorch's version.
    #[serde(default)]
    pub libtorch: String,
    /// The MPI library's name and version; empty without MPI.
    #[serde(default)]
    pub mpi: String,
}

fn unnamed_protocol() -> String {
    "2".to_owned()
}

impl Versions {
    /// Those of a program that does not name them.
    pub fn unnamed() -> Self {
        Self { protocol: unnamed_protocol(), ..Self::default() }
    }

    /// This program's own, as far as a program without libtorch and MPI can tell.
    pub fn of_program() -> Self {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        Self { program, git: GIT.map(str::to_owned), protocol: PROTOCOL.to_owned(), ..Self::default() }
    }

    /// The first thing in which `other` differs: its name, ours, the other's. What one of the two does not know is not
    /// compared.
    pub fn differs<'a>(&'a self, other: &'a Self) -> Option<(&'static str, &'a str, &'a str)> {
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
    fn what_differs_is_named_and_what_is_unknown_is_not_compared() {
        let own = Versions::of_program();
        assert_eq!(own.program, "0.1.0");
        let rank = Versions { libtorch: "2.11.0".into(), mpi: "Open MPI 4.1.4".into(), ..own.clone() };
        assert_eq!(own.differs(&rank), None);
        let other = Versions { mpi: "Open MPI 5.0.11".into(), ..rank.clone() };
        assert_eq!(rank.differs(&other), Some(("MPI library", "Open MPI 4.1.4", "Open MPI 5.0.11")));
        let built = |git: &str| Versions { git: Some(git.into()), ..rank.clone() };
        assert_eq!(built("abc").differs(&built("abd")), Some(("git commit", "abc", "abd")));
        assert_eq!(built("abc").differs(&Versions { git: None, ..rank.clone() }), None);
        let before: Versions = serde_json::from_str(r#"{"program":"0.1.0"}"#).unwrap();
        assert_eq!(own.differs(&before), Some(("control protocol", "3", "2")));
        assert_eq!(own.differs(&Versions::unnamed()), Some(("control protocol", "3", "2")));
    }
}
