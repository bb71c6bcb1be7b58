//! Recognizes the names that lambert writes, to tell them from the files of a user.

use super::{
    AttemptStep, CHECKPOINTS, CONFIG, COORDINATOR, DEVICES, JOB, MANIFEST, MICRO_BATCHES, PHRASES, RECORDS, ROLLBACKS,
    SAVE, STATUS, STOP, SUBMISSIONS, TEACHER, TEACHER_INFO, TOKENIZER, TRANSFORMERS, VOCABULARY, WEIGHTS,
    attempt_of_lease, attempt_of_record, is_moments, is_nccl_report_or_log, position_of_records,
};

/// Prefix of the NCCL reports and logs.
const NCCL: &str = "nccl";

/// Objects of a run with a fixed name.
const FIXED: [&str; 10] = [CONFIG, VOCABULARY, TOKENIZER, PHRASES, STATUS, COORDINATOR, JOB, STOP, SAVE, TEACHER_INFO];

/// Folders of a run.
const FOLDERS: [&str; 9] =
    [CHECKPOINTS, RECORDS, ROLLBACKS, DEVICES, MICRO_BATCHES, NCCL, TEACHER, TRANSFORMERS, "control"];

/// True if a run has a folder with this name, which is the last component of a path.
pub(crate) fn is_folder(name: &str) -> bool {
    FOLDERS.contains(&name) || AttemptStep::parse(name).is_some()
}

/// True if lambert writes an object with the name `path` to a run.
pub(crate) fn is_written(path: &str) -> bool {
    let Some((folder, rest)) = path.split_once('/') else {
        return FIXED.contains(&path) || attempt_of_lease(path).is_some();
    };
    match folder {
        CHECKPOINTS => is_in_checkpoints(rest),
        RECORDS => position_of_records(path).is_some(),
        ROLLBACKS | DEVICES | MICRO_BATCHES => attempt_of_record(folder, path).is_some(),
        NCCL => is_nccl_report_or_log(path),
        // A teacher may have any tokenizer files.
        TEACHER | TRANSFORMERS => true,
        _ => FIXED.contains(&path) || is_submission(path),
    }
}

fn is_in_checkpoints(rest: &str) -> bool {
    rest.split_once('/').is_some_and(|(name, object)| {
        AttemptStep::parse(name).is_some() && ([MANIFEST, WEIGHTS].contains(&object) || is_moments(object))
    })
}

fn is_submission(path: &str) -> bool {
    let number = path.strip_prefix(SUBMISSIONS).and_then(|rest| rest.strip_prefix('/'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::{
        devices, in_checkpoint, in_transformers, lease, moments, nccl_log, records, rollback, submission,
    };
    use super::*;

    #[test]
    fn names_of_a_run_are_told_from_those_of_a_user() {
        let checkpoint = AttemptStep { attempt: 1, step: 50 }.name();
        let written = [
            in_checkpoint(&checkpoint, MANIFEST),
            in_checkpoint(&checkpoint, &moments(0, 2)),
            in_transformers(TOKENIZER),
            records(1, 0),
            rollback(2),
            devices(3),
            nccl_log(1, 2),
            lease(7),
            submission(4),
            STATUS.to_owned(),
            STOP.to_owned(),
        ];
        for name in written {
            assert!(is_written(&name), "{name}");
        }
        for name in ["plot ", "analysis/plot ", "metrics/plot ", "checkpoints/notes", "checkpoints/step-1/plot", "C"] {
            assert!(!is_written(name), "{name}");
        }
        assert!(is_folder(CHECKPOINTS) && is_folder(&checkpoint) && !is_folder("analysis"));
    }
}
