//! Checkpoints of a run: sets of objects under `checkpoints/step-000012000-a0003/`.
//!
//! A checkpoint exists if and only if its manifest exists and every object has the size and checksum that the
//! manifest says. Ranks put their objects, rank 0 commits the manifest last; `newest_verified` finds what to
//! resume from, `prune` removes what is no longer wanted.

mod copy;
mod manifest;
mod prune;
mod select;
mod tensors;
mod writer;

pub use copy::copy;
pub use manifest::{Best, FORMAT, Manifest, ObjectEntry, Slice};
pub use prune::{Pruned, Retention, prune, retain};
pub use select::{
    Listed, PassedOver, Selection, Sink, Verified, list, newest_fitting, newest_verified, read_manifest, read_object,
    stream_object, verify,
};
pub use writer::{PendingObject, Writer};

/// The folder of a run that holds its checkpoints.
pub const FOLDER: &str = "checkpoints";

/// The object whose existence makes a checkpoint.
pub const MANIFEST: &str = "manifest.json";

/// A checkpoint's place in a run: attempts in order, and steps within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The attempt that wrote it.
    pub attempt: u32,
    /// The optimizer steps done.
    pub step: u64,
}

impl Place {
    /// The checkpoint's name, such as `step-000012000-a0003`.
    pub fn name(self) -> String {
        format!("step-{:09}-a{:04}", self.step, self.attempt)
    }

    /// The place that a name stands for, or `None` if it is no checkpoint's name.
    pub fn of(name: &str) -> Option<Self> {
        let (step, attempt) = name.strip_prefix("step-")?.split_once("-a")?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let place = (digits(step) && digits(attempt))
            .then(|| Some(Self { attempt: attempt.parse().ok()?, step: step.parse().ok()? }))??;
        (place.name() == name).then_some(place)
    }
}

/// The highest attempt that a checkpoint's folder in `run` names, finished or not.
pub(crate) fn highest_attempt(run: &crate::Store) -> crate::Result<Option<u32>> {
    let folders = run.list_folders(FOLDER)?;
    Ok(folders.iter().filter_map(|name| Place::of(name)).map(|place| place.attempt).max())
}

/// `checkpoints/NAME/OBJECT`, relative to the run.
fn path(checkpoint: &str, object: &str) -> String {
    format!("{FOLDER}/{checkpoint}/{object}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_are_one_to_one() {
        for place in [Place { attempt: 3, step: 12000 }, Place { attempt: 12345, step: 1 << 40 }] {
            assert_eq!(Place::of(&place.name()), Some(place));
        }
        assert_eq!(Place { attempt: 3, step: 12000 }.name(), "step-000012000-a0003");
        for alien in ["", "step-12-a0003", "step-000012000-a3", "step-+00012000-a0003", "step-000012000-a0003x", ".."] {
            assert_eq!(Place::of(alien), None, "{alien}");
        }
    }

    #[test]
    fn a_later_attempt_comes_after_a_higher_step() {
        assert!(Place { attempt: 4, step: 10 } > Place { attempt: 3, step: 200 });
    }
}
