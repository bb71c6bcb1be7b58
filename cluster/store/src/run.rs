//! The objects of a run: their names, relative to the run's store, and the URLs of its checkpoints. Nothing else spells
//! them.

/// The resolved configuration.
pub const CONFIG: &str = "run.toml";

/// The vocabulary, a piece a line.
pub const VOCABULARY: &str = "vocab.txt";

/// Where the run is, as its coordinator wrote it last.
pub const STATUS: &str = "status.json";

/// What its coordinators remember for later starts.
pub const COORDINATOR: &str = "coordinator.json";

/// Which job of Slurm trains the run.
pub const JOB: &str = "job.json";

/// Held by the `lambert submit` that queues the run.
pub const SUBMISSION: &str = "control/submission";

/// Asks the coordinator to stop.
pub const STOP: &str = "control/stop";

/// Asks the coordinator for a checkpoint.
pub const SAVE: &str = "control/checkpoint";

/// The folder of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";

/// The object of a checkpoint whose existence makes it one.
pub const MANIFEST: &str = "manifest.json";

/// The object of a checkpoint with the weights.
pub const WEIGHTS: &str = "model.safetensors";

/// The folder of the records of steps.
pub const RECORDS: &str = "metrics";

/// The folder of the records of rollbacks.
pub const ROLLBACKS: &str = "rollbacks";

/// What the names of a checkpoint's objects with the moments begin with.
const OPTIMIZER: &str = "optimizer-";

/// What the names of leases begin with.
const LEASE: &str = "lease-";

/// How the URL of a checkpoint is written, for messages.
pub const CHECKPOINT_URL: &str = "RUN/checkpoints/step-NNNNNNNNN-aNNNN";

/// The lease of an attempt.
pub fn lease(attempt: u32) -> String {
    format!("{LEASE}{attempt:06}")
}

/// The attempt whose lease an object is, if it is one.
pub fn attempt_of_lease(name: &str) -> Option<u32> {
    let attempt = name.strip_prefix(LEASE)?.parse().ok()?;
    (lease(attempt) == name).then_some(attempt)
}

/// What an attempt that rolled back leaves for the next.
pub fn rollback(attempt: u32) -> String {
    format!("{ROLLBACKS}/attempt-{attempt:04}.json")
}

/// The attempt that left the record of a rollback `name`, if it is one.
pub fn attempt_of_rollback(name: &str) -> Option<u32> {
    let attempt = name.strip_prefix(ROLLBACKS)?.strip_prefix("/attempt-")?.strip_suffix(".json")?.parse().ok()?;
    (rollback(attempt) == name).then_some(attempt)
}

/// How large the micro-batches of an attempt are, where the configuration leaves it open.
pub fn micro_batches(attempt: u32) -> String {
    format!("micro-batches/attempt-{attempt:04}.json")
}

/// How the ranks of an attempt summed between their cards.
pub fn sums(attempt: u32) -> String {
    format!("sums/attempt-{attempt:04}.json")
}

/// The records of an attempt's steps behind step `from`, up to a checkpoint.
pub fn records(attempt: u32, from: u64) -> String {
    format!("{RECORDS}/attempt-{attempt:04}-from-{from:09}.jsonl")
}

/// The attempt and the step that the object of records `name` begins behind, if it is one.
pub fn place_of_records(name: &str) -> Option<Place> {
    let (attempt, from) =
        name.strip_prefix(RECORDS)?.strip_prefix("/attempt-")?.strip_suffix(".jsonl")?.split_once("-from-")?;
    let place = Place { attempt: attempt.parse().ok()?, step: from.parse().ok()? };
    (records(place.attempt, place.step) == name).then_some(place)
}

/// The folder of a checkpoint, such as `step-000012000-a0003`.
pub fn checkpoint(name: &str) -> String {
    format!("{CHECKPOINTS}/{name}")
}

/// An object of a checkpoint.
pub fn in_checkpoint(checkpoint: &str, object: &str) -> String {
    format!("{CHECKPOINTS}/{checkpoint}/{object}")
}

/// The object of a checkpoint with part `index` of `parts` of the moments.
pub fn moments(index: usize, parts: usize) -> String {
    format!("{OPTIMIZER}{index:05}-of-{parts:05}.safetensors")
}

/// Whether an object of a checkpoint holds moments.
pub fn is_moments(object: &str) -> bool {
    object.starts_with(OPTIMIZER)
}

/// The URL of a checkpoint of the run at `run`.
pub fn checkpoint_url(run: &str, checkpoint: &str) -> String {
    format!("{run}/{CHECKPOINTS}/{checkpoint}")
}

/// The run and, if `url` is a [`CHECKPOINT_URL`], the checkpoint's name.
pub fn split(url: &str) -> (&str, Option<&str>) {
    let parts = url.trim_end_matches('/').rsplit_once('/');
    let run = parts.and_then(|(folder, _)| folder.strip_suffix(CHECKPOINTS)?.strip_suffix('/'));
    match (run, parts) {
        (Some(run), Some((_, name))) => (run, Some(name)),
        _ => (url, None),
    }
}

/// The highest attempt. There is a number after it, so that `attempt + 1` is always one.
pub const LAST_ATTEMPT: u32 = u32::MAX - 1;

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

    /// Parses a checkpoint's name; `None` if it is not one.
    pub fn of(name: &str) -> Option<Self> {
        let (step, attempt) = name.strip_prefix("step-")?.split_once("-a")?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let place = (digits(step) && digits(attempt))
            .then(|| Some(Self { attempt: attempt.parse().ok()?, step: step.parse().ok()? }))??;
        (place.name() == name).then_some(place)
    }
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

    #[test]
    fn a_checkpoint_is_told_from_a_run() {
        assert_eq!(split("runs/a"), ("runs/a", None));
        assert_eq!(split("s3://b/a/"), ("s3://b/a/", None));
        assert_eq!(split("runs/a/checkpoints/step-1/"), ("runs/a", Some("step-1")));
        assert_eq!(split("x/checkpoints/a/b"), ("x/checkpoints/a/b", None));
        assert_eq!(split("x/my-checkpoints/a"), ("x/my-checkpoints/a", None));
        assert_eq!(split("checkpoints"), ("checkpoints", None));
        let url = checkpoint_url("s3://b/a", "step-000000007-a0002");
        assert_eq!(split(&url), ("s3://b/a", Some("step-000000007-a0002")));
    }

    /// What is in the stores of runs that exist.
    #[test]
    fn names_are_those_of_the_runs_that_exist() {
        let names = [lease(3), rollback(3), records(2, 700), in_checkpoint("step-1", MANIFEST), moments(1, 12)];
        let expected = [
            "lease-000003",
            "rollbacks/attempt-0003.json",
            "metrics/attempt-0002-from-000000700.jsonl",
            "checkpoints/step-1/manifest.json",
            "optimizer-00001-of-00012.safetensors",
        ];
        assert_eq!(names, expected);
        assert_eq!(attempt_of_lease(&lease(70)), Some(70));
        assert_eq!(["lease-x", "lease-+00007", "lease-7", "status.json"].map(attempt_of_lease), [None; 4]);
        assert_eq!(attempt_of_rollback(&rollback(70)), Some(70));
        assert_eq!(
            ["rollbacks/x", "attempt-0070.json", "rollbacks/attempt-7.json"].map(attempt_of_rollback),
            [None; 3]
        );
        assert_eq!(place_of_records(&records(2, 700)), Some(Place { attempt: 2, step: 700 }));
        assert_eq!(
            ["metrics/x.jsonl", "metrics/attempt-2-from-000000700.jsonl", "rollbacks/attempt-0003.json"]
                .map(place_of_records),
            [None; 3]
        );
        assert!(is_moments(&moments(0, 1)) && !is_moments(WEIGHTS));
    }
}
