//! Version comparison between the ranks of an attempt.

use lambert_control::Versions;

/// Compares the versions of all ranks with those of the first rank that reported its versions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VersionCheck {
    first: Option<(usize, Versions)>,
    /// Description of the first mismatch.
    pub mismatch: Option<String>,
}

impl VersionCheck {
    pub(super) fn compare(&mut self, rank: usize, versions: Versions) {
        let Some((first, known)) = &self.first else {
            self.first = Some((rank, versions));
            return;
        };
        if let Some((what, one, other)) = known.first_difference(&versions) {
            let mismatch = format!("rank {first} has {what} {one}, rank {rank} has {other}");
            self.mismatch.get_or_insert(mismatch);
        }
    }
}
