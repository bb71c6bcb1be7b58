//! The programs that the ranks of an attempt run, compared.

use lambert_control::Versions;

/// The versions of the ranks: those of the first that has told them are the standard.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VersionCheck {
    first: Option<(usize, Versions)>,
    /// The first difference between two versions, in words.
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
