//! Names of objects relative to the store of a run, and checkpoint URLs. All other modules take these names from here.

mod written;

pub(crate) use written::{is_folder, is_written};

/// The resolved configuration.
pub const CONFIG: &str = "run.toml";

/// The vocabulary of a WordPiece tokenizer, one token per line.
pub const VOCABULARY: &str = "vocab.txt";

/// The vocabulary of another tokenizer, as Hugging Face stores it.
pub const TOKENIZER: &str = "tokenizer.json";

/// Phrases that are masked as a whole, one per line.
pub const PHRASES: &str = "phrases.txt";

/// Maximum size of the list of phrases, bytes.
pub const MAX_PHRASES_BYTES: u64 = 64 << 20;

/// Status, written by the coordinator.
pub const STATUS: &str = "status.json";

/// Coordinator state that is kept across restarts.
pub const COORDINATOR: &str = "coordinator.json";

/// JSON pointer to the steps of the furthest checkpoint in [`COORDINATOR`].
pub const FURTHEST_CHECKPOINT: &str = "/progress/furthest";

/// Slurm job of the run.
pub const JOB: &str = "job.json";

/// Prefix of the locks of submissions.
pub const SUBMISSIONS: &str = "control/submissions";

/// Lock number `number` of the `lambert submit` process that is queueing the run.
pub fn submission(number: u32) -> String {
    format!("{SUBMISSIONS}/{number:06}")
}

/// Stop request to the coordinator.
pub const STOP: &str = "control/stop";

/// Checkpoint request to the coordinator.
pub const SAVE: &str = "control/checkpoint";

/// Prefix of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";

/// Manifest of a checkpoint. Creating the manifest commits the checkpoint.
pub const MANIFEST: &str = "manifest.json";

/// Prefix of the files of an imported model that an export reads.
const TRANSFORMERS: &str = "transformers";

/// Tokenizer files that an imported model and the runs that start from it keep.
pub const TOKENIZER_FILES: [&str; 3] = [TOKENIZER, "tokenizer_config.json", "special_tokens_map.json"];

/// Configuration of a model in the format of Hugging Face Transformers.
pub const TRANSFORMERS_CONFIG: &str = "config.json";

/// Files that an imported model and its copies keep.
pub const IMPORTED_FILES: [&str; 4] =
    [TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", TRANSFORMERS_CONFIG];

/// Name of a file of an imported model.
pub fn in_transformers(file: &str) -> String {
    format!("{TRANSFORMERS}/{file}")
}

/// Description of the teacher of the run.
pub const TEACHER_INFO: &str = "teacher.toml";

/// Prefix of the copy of the teacher.
pub const TEACHER: &str = "teacher";

/// Weights of a checkpoint.
pub const WEIGHTS: &str = "model.safetensors";

/// Prefix of the step records.
pub const RECORDS: &str = "metrics";

/// Prefix of the rollback records.
pub const ROLLBACKS: &str = "rollbacks";

/// Prefix of the records of the devices of the ranks.
pub const DEVICES: &str = "devices";

/// Prefix of the records of micro-batch sizes that were chosen automatically.
pub const MICRO_BATCHES: &str = "micro-batches";

/// Name prefix of the optimizer shards of a checkpoint.
const OPTIMIZER: &str = "optimizer-";

/// Name prefix of leases.
const LEASE: &str = "lease-";

/// Form of a checkpoint URL, for messages.
pub const CHECKPOINT_URL: &str = "RUN/checkpoints/step-NNNNNNNNN-aNNNN";

/// Name of the lease of an attempt.
pub fn lease(attempt: u32) -> String {
    format!("{LEASE}{attempt:06}")
}

/// Parses the attempt number from a lease name.
pub fn attempt_of_lease(name: &str) -> Option<u32> {
    let attempt = name.strip_prefix(LEASE)?.parse().ok()?;
    (lease(attempt) == name).then_some(attempt)
}

/// Name of the record of an attempt below `prefix`, such as [`DEVICES`].
pub fn attempt_record(prefix: &str, attempt: u32) -> String {
    format!("{prefix}/attempt-{attempt:04}.json")
}

/// Parses the attempt number from the name of a record below `prefix`.
pub fn attempt_of_record(prefix: &str, name: &str) -> Option<u32> {
    let attempt = name.strip_prefix(prefix)?.strip_prefix("/attempt-")?.strip_suffix(".json")?.parse().ok()?;
    (attempt_record(prefix, attempt) == name).then_some(attempt)
}

/// Name of the rollback record of an attempt.
pub fn rollback(attempt: u32) -> String {
    attempt_record(ROLLBACKS, attempt)
}

/// Parses the attempt number from the name of a rollback record.
pub fn attempt_of_rollback(name: &str) -> Option<u32> {
    attempt_of_record(ROLLBACKS, name)
}

/// Name of the record of the devices of the ranks in an attempt.
pub fn devices(attempt: u32) -> String {
    attempt_record(DEVICES, attempt)
}

/// Name of the record of the micro-batch sizes that an attempt chose automatically.
pub fn micro_batches(attempt: u32) -> String {
    attempt_record(MICRO_BATCHES, attempt)
}

/// Name of the NCCL report of an attempt.
pub fn nccl_report(attempt: u32) -> String {
    attempt_record("nccl", attempt)
}

/// Name of the object with the end of a rank's NCCL log. The rank writes it when NCCL fails.
pub fn nccl_log(attempt: u32, rank: usize) -> String {
    format!("nccl/attempt-{attempt:04}-rank-{rank:04}.log")
}

/// True if `name` is that of an NCCL report or the end of an NCCL log.
pub(crate) fn is_nccl_report_or_log(name: &str) -> bool {
    name.starts_with("nccl/attempt-")
}

/// Name of the object with the records of the steps after step `from`, up to the next checkpoint of the attempt.
pub fn records(attempt: u32, from: u64) -> String {
    format!("{RECORDS}/attempt-{attempt:04}-from-{from:09}.jsonl")
}

/// Parses the name of an object of step records. Returns the attempt and the step before the first record.
pub fn position_of_records(name: &str) -> Option<AttemptStep> {
    let (attempt, from) =
        name.strip_prefix(RECORDS)?.strip_prefix("/attempt-")?.strip_suffix(".jsonl")?.split_once("-from-")?;
    let position = AttemptStep { attempt: attempt.parse().ok()?, step: from.parse().ok()? };
    (records(position.attempt, position.step) == name).then_some(position)
}

/// Name of the only checkpoint of an imported model.
pub fn imported_checkpoint() -> String {
    AttemptStep { attempt: 1, step: 0 }.name()
}

/// Prefix of the objects of a checkpoint, such as `checkpoints/step-000012000-a0003`.
pub fn checkpoint(name: &str) -> String {
    format!("{CHECKPOINTS}/{name}")
}

/// Name of an object of a checkpoint, relative to the run.
pub fn in_checkpoint(checkpoint: &str, object: &str) -> String {
    format!("{CHECKPOINTS}/{checkpoint}/{object}")
}

/// Name of optimizer shard `index` of `parts` in a checkpoint.
pub fn moments(index: usize, parts: usize) -> String {
    format!("{OPTIMIZER}{index:05}-of-{parts:05}.safetensors")
}

/// True if the object of a checkpoint is an optimizer shard.
pub fn is_moments(object: &str) -> bool {
    object.starts_with(OPTIMIZER)
}

/// URL of a checkpoint of the run at `run`.
pub fn checkpoint_url(run: &str, checkpoint: &str) -> String {
    format!("{run}/{CHECKPOINTS}/{checkpoint}")
}

/// Splits a URL of the form [`CHECKPOINT_URL`] into the URL of the run and the checkpoint name. Returns any other URL
/// unchanged, with `None`.
pub fn split_checkpoint_url(url: &str) -> (&str, Option<&str>) {
    let parts = url.trim_end_matches('/').rsplit_once('/');
    let run = parts.and_then(|(folder, _)| folder.strip_suffix(CHECKPOINTS)?.strip_suffix('/'));
    match (run, parts) {
        (Some(run), Some((_, name))) => (run, Some(name)),
        _ => (url, None),
    }
}

/// Highest permitted attempt number. With this limit, `attempt + 1` never overflows.
pub const LAST_ATTEMPT: u32 = u32::MAX - 1;

/// Attempt and step. Orders checkpoints and step records by attempt, then by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptStep {
    /// Attempt number, from 1.
    pub attempt: u32,
    /// Completed optimizer steps.
    pub step: u64,
}

impl AttemptStep {
    /// Name of the checkpoint of this attempt and step, such as `step-000012000-a0003`.
    pub fn name(self) -> String {
        format!("step-{:09}-a{:04}", self.step, self.attempt)
    }

    /// Parses the name of a checkpoint. Returns `None` for any other name.
    pub fn parse(name: &str) -> Option<Self> {
        let (step, attempt) = name.strip_prefix("step-")?.split_once("-a")?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let position = (digits(step) && digits(attempt))
            .then(|| Some(Self { attempt: attempt.parse().ok()?, step: step.parse().ok()? }))??;
        (position.name() == name).then_some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_names_round_trip() {
        for position in [AttemptStep { attempt: 3, step: 12000 }, AttemptStep { attempt: 12345, step: 1 << 40 }] {
            assert_eq!(AttemptStep::parse(&position.name()), Some(position));
        }
        assert_eq!(AttemptStep { attempt: 3, step: 12000 }.name(), "step-000012000-a0003");
        for alien in ["", "step-12-a0003", "step-000012000-a3", "step-+00012000-a0003", "step-000012000-a0003x", ".."] {
            assert_eq!(AttemptStep::parse(alien), None, "{alien}");
        }
    }

    #[test]
    fn attempts_order_before_steps() {
        assert!(AttemptStep { attempt: 4, step: 10 } > AttemptStep { attempt: 3, step: 200 });
    }

    #[test]
    fn checkpoint_urls_are_split_and_run_urls_kept() {
        assert_eq!(split_checkpoint_url("runs/a"), ("runs/a", None));
        assert_eq!(split_checkpoint_url("s3://b/a/"), ("s3://b/a/", None));
        assert_eq!(split_checkpoint_url("runs/a/checkpoints/step-1/"), ("runs/a", Some("step-1")));
        assert_eq!(split_checkpoint_url("x/checkpoints/a/b"), ("x/checkpoints/a/b", None));
        assert_eq!(split_checkpoint_url("x/my-checkpoints/a"), ("x/my-checkpoints/a", None));
        assert_eq!(split_checkpoint_url("checkpoints"), ("checkpoints", None));
        let url = checkpoint_url("s3://b/a", "step-000000007-a0002");
        assert_eq!(split_checkpoint_url(&url), ("s3://b/a", Some("step-000000007-a0002")));
    }

    /// The stores of existing runs have these names, so the names must not change.
    #[test]
    fn names_match_existing_runs() {
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
        let of_attempts = [devices(1), micro_batches(12345), nccl_report(1)];
        assert_eq!(
            of_attempts,
            ["devices/attempt-0001.json", "micro-batches/attempt-12345.json", "nccl/attempt-0001.json"]
        );
        assert_eq!(nccl_log(2, 31), "nccl/attempt-0002-rank-0031.log");
        assert_eq!(attempt_of_record(MICRO_BATCHES, &micro_batches(12345)), Some(12345));
        assert_eq!(attempt_of_record(DEVICES, &micro_batches(1)), None);
        assert_eq!(
            ["rollbacks/x", "attempt-0070.json", "rollbacks/attempt-7.json"].map(attempt_of_rollback),
            [None; 3]
        );
        assert_eq!(position_of_records(&records(2, 700)), Some(AttemptStep { attempt: 2, step: 700 }));
        assert_eq!(
            ["metrics/x.jsonl", "metrics/attempt-2-from-000000700.jsonl", "rollbacks/attempt-0003.json"]
                .map(position_of_records),
            [None; 3]
        );
        assert!(is_moments(&moments(0, 1)) && !is_moments(WEIGHTS));
    }
}
