//! Commits a checkpoint: writes step records and manifest, on a thread of rank 0.

use std::collections::BTreeSet;

use lambert_store::checkpoint::{CheckpointWriter, Manifest, ObjectEntry, Retention, Slice};
use lambert_store::{Lease, Store};
use serde::{Deserialize, Serialize};

use super::pruner::Pruner;
use super::records::RecordBatch;
use crate::error::{self, Error};
use crate::recovery::replicas::ReplicaMismatch;
use crate::worker::agreement::SaveDecision;
use crate::worker::session::{self, Session};
use crate::worker::trace::span;

/// Checkpoint that is committed after all ranks have sent their entries.
pub struct Commit {
    /// Writer of the checkpoint.
    pub writer: CheckpointWriter,
    /// Manifest. The commit fills in its list of objects.
    pub manifest: Manifest,
    /// Result of [`RankEntries::encode`] from each rank.
    pub parts: Vec<Vec<u8>>,
    /// Step records since the previous checkpoint.
    pub records: RecordBatch,
    /// Store of the run.
    pub store: Store,
    /// Lease of the attempt.
    pub lease: Lease,
    /// Retention rules for older checkpoints.
    pub retention: Retention,
    /// Background deletion of old checkpoints.
    pub pruner: Pruner,
}

/// Outcome of a save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SaveOutcome {
    /// The checkpoint is committed.
    Committed,
    /// Transient failure: a retry may succeed.
    Failed(String),
    /// The weights of the ranks differ.
    ReplicasDiffer(ReplicaMismatch),
    /// A tensor has a non-finite element. The text names the tensor and the rank.
    NotFinite(String),
    /// Permanent failure: this attempt cannot save any more.
    Permanent(String),
}

impl SaveOutcome {
    /// Decision that rank 0 broadcasts to the other ranks for this outcome.
    pub fn decision(&self) -> SaveDecision {
        match self {
            Self::Committed => SaveDecision::Committed,
            Self::Failed(_) => SaveDecision::Failed,
            Self::ReplicasDiffer(_) => SaveDecision::ReplicasDiffer,
            Self::NotFinite(_) => SaveDecision::NotFinite,
            Self::Permanent(_) => SaveDecision::Permanent,
        }
    }
}

/// Contribution of a rank to the manifest.
#[derive(Serialize, Deserialize)]
pub struct RankEntries {
    /// Digest of the weights of the rank when the save began.
    digest: u64,
    /// Entries of the written objects, or the failure.
    written: Result<Vec<ObjectEntry>, WriteFailure>,
}

/// Reason why a rank has not written its objects.
#[derive(Serialize, Deserialize)]
enum WriteFailure {
    /// A store error, possibly transient.
    Store(String),
    /// A tensor has a non-finite element.
    NotFinite(String),
}

impl RankEntries {
    /// Serializes the contribution for rank 0. `slices` are the parameter slices in the optimizer shard of the rank.
    pub fn encode(
        digest: u64,
        written: Result<Vec<ObjectEntry>, lambert_store::Error>,
        slices: &[Slice],
    ) -> Result<Vec<u8>, Error> {
        let written = written.map_err(|error| match &error {
            lambert_store::Error::NotFinite { tensor, element, .. } => {
                WriteFailure::NotFinite(name_element(tensor, *element, slices))
            }
            _ => WriteFailure::Store(error::chain(&error)),
        });
        serde_json::to_vec(&Self { digest, written }).map_err(Error::Json)
    }
}

/// Describes an element of a tensor in a checkpoint. An optimizer tensor concatenates many parameters, and `slices`
/// shows which parameter the element belongs to.
fn name_element(tensor: &str, element: u64, slices: &[Slice]) -> String {
    let mut before = 0;
    let moments = [super::files::FIRST, super::files::SECOND].contains(&tensor);
    for slice in slices.iter().filter(|_| moments) {
        if element - before < slice.count {
            return format!("element {} of {tensor} of {}", slice.first + element - before, slice.tensor);
        }
        before += slice.count;
    }
    format!("element {element} of {tensor}")
}

impl Commit {
    /// Commits the checkpoint. After a successful commit, deletes old checkpoints in the background. Returns the
    /// outcome. Also returns the step records, because after a failure the next save needs them.
    pub fn run(mut self) -> (SaveOutcome, RecordBatch) {
        let _commit = span!("commit", checkpoint = self.writer.name());
        // Wait for the previous deletion, so that a local disk has at most two checkpoints in addition to the retained
        // checkpoints. Object stores need no limit.
        if self.store.is_local() {
            self.pruner.wait();
        }
        let outcome = self.outcome();
        if outcome == SaveOutcome::Committed {
            self.retention.known_intact = Some(self.writer.name().to_owned());
            self.pruner.start(self.store, self.lease, self.retention);
        } else if let Err(error) = self.writer.abandon() {
            tracing::debug!(
                "cannot delete the objects of the failed save {}: {}",
                self.writer.name(),
                error::chain(&error)
            );
        }
        (outcome, self.records)
    }

    /// Commits the checkpoint. If the commit fails and the lease is lost, reports the lost lease as the cause. The
    /// lease is lost if the run was moved, or if another attempt has the lease.
    fn outcome(&mut self) -> SaveOutcome {
        match self.commit() {
            SaveOutcome::Failed(why) => match session::lease_loss(&self.lease) {
                Some(lost) => SaveOutcome::Permanent(error::chain(&lost)),
                None => SaveOutcome::Failed(why),
            },
            outcome => outcome,
        }
    }

    fn commit(&mut self) -> SaveOutcome {
        let parts: Result<Vec<RankEntries>, _> = self.parts.iter().map(|part| serde_json::from_slice(part)).collect();
        let parts = match parts {
            Ok(parts) => parts,
            Err(error) => return SaveOutcome::Failed(error.to_string()),
        };
        if let Some(difference) = ReplicaMismatch::detect(&parts.iter().map(|part| part.digest).collect::<Vec<_>>()) {
            return SaveOutcome::ReplicasDiffer(difference);
        }
        self.manifest.objects = match merge_entries(parts) {
            Ok(objects) => objects,
            Err(outcome) => return outcome,
        };
        self.write().map_or_else(|error| failure_outcome(&error), |()| SaveOutcome::Committed)
    }

    fn write(&self) -> Result<(), lambert_store::Error> {
        self.records.write(&self.store)?;
        self.writer.commit(&self.manifest, &self.lease)
    }
}

/// Merges the entries of all ranks. A non-finite element takes precedence over a store error, because a retry can only
/// fix a store error.
fn merge_entries(parts: Vec<RankEntries>) -> Result<Vec<ObjectEntry>, SaveOutcome> {
    let (mut objects, mut failed) = (Vec::new(), None);
    for (rank, part) in parts.into_iter().enumerate() {
        match part.written {
            Ok(entries) => objects.extend(entries),
            Err(WriteFailure::NotFinite(what)) => {
                return Err(SaveOutcome::NotFinite(format!("{what} is not finite on rank {rank}")));
            }
            Err(WriteFailure::Store(why)) => drop(failed.get_or_insert(why)),
        }
    }
    failed.map_or(Ok(objects), |why| Err(SaveOutcome::Failed(why)))
}

fn failure_outcome(error: &lambert_store::Error) -> SaveOutcome {
    use lambert_store::Error as E;
    let message = error::chain(error);
    match error {
        // Another attempt has the lease of the run, or the manifest is invalid. A retry cannot succeed.
        E::LeaseLost { .. } | E::LeaseGone { .. } | E::Refused { .. } | E::Exists { .. } => {
            SaveOutcome::Permanent(message)
        }
        _ => SaveOutcome::Failed(message),
    }
}

/// Retention rules that apply after the checkpoint of `manifest` is committed. `known_damaged` are the checkpoints that
/// the attempt found damaged when it started.
pub fn retention(session: &Session, manifest: &Manifest, known_damaged: BTreeSet<String>) -> Retention {
    let settings = &session.config.checkpoint;
    Retention {
        last: settings.keep,
        every_steps: settings.keep_every_steps,
        named: manifest.best.iter().filter(|_| settings.keep_best).map(|best| best.checkpoint.clone()).collect(),
        known_intact: None,
        known_damaged,
    }
}

#[cfg(test)]
mod tests {
    use lambert_config::RunConfig;
    use lambert_store::checkpoint as stored;
    use lambert_store::hash::sha256;

    use super::*;

    /// Saves step 10 and then step 20 with two ranks. `lie` changes the contributions of the ranks to step 20. Returns
    /// the outcome of step 20, the checkpoint that the next start selects, and the reasons for skipped checkpoints.
    fn save(lie: impl FnOnce(&mut [RankEntries; 2])) -> (SaveOutcome, String, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().to_str().unwrap()).unwrap();
        let lease = Lease::take(&store).unwrap();
        let mut outcomes = Vec::new();
        let mut lie = Some(lie);
        for step in [10, 20] {
            let writer = CheckpointWriter::new(&store, step, lease.attempt());
            let mut parts = [0, 1].map(|rank| part(&writer, rank));
            if let Some(lie) = lie.take_if(|_| step == 20) {
                lie(&mut parts);
            }
            let commit = Commit {
                manifest: manifest(step, lease.attempt()),
                parts: parts.iter().map(|part| serde_json::to_vec(part).unwrap()).collect(),
                records: crate::checkpoint::records::Records::new(lease.attempt(), step).cut(step),
                store: store.clone(),
                lease: lease.clone(),
                retention: Retention { last: 5, ..Retention::default() },
                pruner: Pruner::default(),
                writer,
            };
            outcomes.push(commit.run().0);
        }
        assert_eq!(outcomes[0], SaveOutcome::Committed);
        let (newest, skipped) = stored::newest_verified(&store).unwrap();
        (outcomes.remove(1), newest.unwrap().0, skipped.into_iter().map(|over| over.why).collect())
    }

    fn part(writer: &CheckpointWriter, rank: usize) -> RankEntries {
        let header = r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &1.0_f32.to_le_bytes()].concat();
        let entry = writer.put_object(&lambert_store::run::moments(rank, 2), file.into()).unwrap();
        RankEntries { digest: 7, written: Ok(vec![entry]) }
    }

    fn manifest(step: u64, attempt: u32) -> Manifest {
        Manifest {
            format: stored::FORMAT,
            step,
            attempt,
            parent: None,
            stage: 0,
            cursor: Default::default(),
            config_sha256: sha256(RunConfig::default().run.name.as_bytes()),
            world: 2,
            held_out_loss: None,
            best: None,
            averaged: Vec::new(),
            state: serde_json::Value::Null,
            objects: Vec::new(),
        }
    }

    fn entry(part: &mut RankEntries) -> &mut ObjectEntry {
        &mut part.written.as_mut().ok().unwrap()[0]
    }

    const FIRST: &str = "step-000000010-a0001";
    const SECOND: &str = "step-000000020-a0001";

    #[test]
    fn consistent_entries_are_committed() {
        assert_eq!(save(|_| ()), (SaveOutcome::Committed, SECOND.to_owned(), vec![]));
    }

    /// An incorrect entry prevents the commit, and the previous checkpoint stays valid.
    #[test]
    fn a_false_entry_fails_the_save_and_keeps_the_previous_checkpoint() {
        let failed = |lie: fn(&mut [RankEntries; 2]), word: &str| match save(lie) {
            (SaveOutcome::Failed(why) | SaveOutcome::Permanent(why), newest, over) => {
                assert!(why.contains(word), "{why}");
                assert_eq!((&*newest, over), (FIRST, vec![]), "{why}");
            }
            other => panic!("{other:?}"),
        };
        failed(|parts| entry(&mut parts[1]).path = "optimizer-00009-of-00002.safetensors".into(), "no object");
        failed(|parts| entry(&mut parts[1]).bytes += 1, "size");
        failed(|parts| entry(&mut parts[1]).path = entry(&mut parts[0]).path.clone(), "listed twice");
        failed(|parts| entry(&mut parts[1]).path = "../lease-000009".into(), "not an object name");
        failed(|parts| entry(&mut parts[1]).sha256 = "0".into(), "no valid sha256");
    }

    /// A commit does not read the objects. The next start reads them, and reports why it skips the checkpoint.
    #[test]
    fn a_false_checksum_is_detected_by_the_next_start() {
        let (outcome, newest, over) = save(|parts| entry(&mut parts[1]).sha256 = sha256(b"something else"));
        assert_eq!((outcome, &*newest), (SaveOutcome::Committed, FIRST));
        assert!(over.len() == 1 && over[0].contains("sha256"), "{over:?}");
    }

    #[test]
    fn ranks_with_different_or_non_finite_weights_are_named() {
        let (outcome, newest, _) = save(|parts| parts[1].digest = 8);
        assert_eq!(outcome, SaveOutcome::ReplicasDiffer(ReplicaMismatch { ranks: vec![0, 1], agreed: None }));
        assert_eq!(newest, FIRST);
        let (outcome, newest, _) = save(|parts| {
            parts[0].written = Err(WriteFailure::Store("the disk is full".into()));
            parts[1].written = Err(WriteFailure::NotFinite("element 3 of exp_avg of a".into()));
        });
        assert_eq!(outcome, SaveOutcome::NotFinite("element 3 of exp_avg of a is not finite on rank 1".into()));
        assert_eq!(newest, FIRST);
    }

    #[test]
    fn elements_of_moments_are_located_in_their_parameter() {
        let slice = |tensor: &str, first, count| Slice { tensor: tensor.into(), first, count };
        let slices = [slice("a", 5, 2), slice("b", 0, 10)];
        let name = |tensor: &str, element| name_element(tensor, element, &slices);
        assert_eq!(name("exp_avg_sq", 1), "element 6 of exp_avg_sq of a");
        assert_eq!(name("exp_avg_sq", 2), "element 0 of exp_avg_sq of b");
        assert_eq!(name("exp_avg", 11), "element 9 of exp_avg of b");
        assert_eq!(name("c", 11), "element 11 of c");
    }
}
