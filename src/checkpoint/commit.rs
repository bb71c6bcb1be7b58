//! Rank 0's last act in a save, on a thread of its own: records and manifest.

use lambert_store::checkpoint::{Manifest, ObjectEntry, Retention, Slice, Writer};
use lambert_store::{Lease, Store};
use serde::{Deserialize, Serialize};

use super::pruner::Pruner;
use super::records::RecordBatch;
use crate::error::{self, Error};
use crate::recovery::replicas::ReplicaMismatch;
use crate::worker::agreement::Decision;
use crate::worker::session::{self, Session};
use crate::worker::trace::span;

/// What is committed, once every rank has handed in its entries.
pub struct Commit {
    /// The checkpoint.
    pub writer: Writer,
    /// Its manifest, without objects.
    pub manifest: Manifest,
    /// What the ranks handed in, [`Part::encode`] of each.
    pub parts: Vec<Vec<u8>>,
    /// The records of the steps that it holds.
    pub records: RecordBatch,
    /// The run's store.
    pub store: Store,
    /// The attempt's right to write there.
    pub lease: Lease,
    /// What is kept beside it.
    pub retention: Retention,
    /// What removes the others.
    pub pruner: Pruner,
}

/// What came of a save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The checkpoint exists.
    Committed,
    /// It does not, for a reason that may pass.
    Failed(String),
    /// It does not, because the ranks do not have the same weights.
    Apart(ReplicaMismatch),
    /// It does not, because a tensor has numbers that are not finite: which and whose.
    NotFinite(String),
    /// It does not, and this attempt will never save one.
    Lost(String),
}

impl Outcome {
    /// What the other ranks are told of it.
    pub fn decision(&self) -> Decision {
        match self {
            Self::Committed => Decision::Committed,
            Self::Failed(_) => Decision::Failed,
            Self::Apart(_) => Decision::Apart,
            Self::NotFinite(_) => Decision::NotFinite,
            Self::Lost(_) => Decision::Lost,
        }
    }
}

/// What a rank hands in.
#[derive(Serialize, Deserialize)]
pub struct Part {
    /// Of its weights, as they were when it began to save.
    digest: u64,
    /// The entries of what it has written, or why it could not.
    written: Result<Vec<ObjectEntry>, Refusal>,
}

/// Why a rank has not written its part.
#[derive(Serialize, Deserialize)]
enum Refusal {
    /// The store has not taken it, which may pass.
    Store(String),
    /// A tensor has numbers that are not finite.
    NotFinite(String),
}

impl Part {
    /// As it is sent to rank 0. `slices` are those of the rank's part of the moments.
    pub fn encode(
        digest: u64,
        written: Result<Vec<ObjectEntry>, lambert_store::Error>,
        slices: &[Slice],
    ) -> Result<Vec<u8>, Error> {
        let written = written.map_err(|error| match &error {
            lambert_store::Error::NotFinite { tensor, element, .. } => {
                Refusal::NotFinite(name_element(tensor, *element, slices))
            }
            _ => Refusal::Store(error::chain(&error)),
        });
        serde_json::to_vec(&Self { digest, written }).map_err(Error::Json)
    }
}

/// An element of a tensor of a checkpoint, for people. The moments of many parameters are one tensor, which `slices` cut.
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
    /// Commits, and hands the records back: they are needed again if it failed. Removing old checkpoints goes on behind it.
    pub fn run(mut self) -> (Outcome, RecordBatch) {
        let _commit = span!("commit", checkpoint = self.writer.name());
        // So that a disk holds no more than two checkpoints beside those that are kept; buckets have room.
        if self.store.is_local() {
            self.pruner.wait();
        }
        let outcome = self.outcome();
        if outcome == Outcome::Committed {
            self.retention.known_sound = Some(self.writer.name().to_owned());
            self.pruner.start(self.store, self.lease, self.retention);
        } else if let Err(error) = self.writer.abandon() {
            tracing::debug!("what was written of {} stays: {}", self.writer.name(), error::chain(&error));
        }
        (outcome, self.records)
    }

    /// What came of it. A lost lease explains any failure: the run was moved, or its store is another attempt's.
    fn outcome(&mut self) -> Outcome {
        match self.commit() {
            Outcome::Failed(why) => match session::loss(&self.lease) {
                Some(lost) => Outcome::Lost(error::chain(&lost)),
                None => Outcome::Failed(why),
            },
            outcome => outcome,
        }
    }

    fn commit(&mut self) -> Outcome {
        let parts: Result<Vec<Part>, _> = self.parts.iter().map(|part| serde_json::from_slice(part)).collect();
        let parts = match parts {
            Ok(parts) => parts,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        if let Some(apart) = ReplicaMismatch::detect(&parts.iter().map(|part| part.digest).collect::<Vec<_>>()) {
            return Outcome::Apart(apart);
        }
        self.manifest.objects = match gathered(parts) {
            Ok(objects) => objects,
            Err(outcome) => return outcome,
        };
        self.write().map_or_else(|error| outcome(&error), |()| Outcome::Committed)
    }

    fn write(&self) -> Result<(), lambert_store::Error> {
        self.records.write(&self.store)?;
        self.writer.commit(&self.manifest, &self.lease)
    }
}

/// The entries of all ranks, or what comes of the save without. Numbers that are not finite go before a store that fails: a
/// store that is mended would not help.
fn gathered(parts: Vec<Part>) -> Result<Vec<ObjectEntry>, Outcome> {
    let (mut objects, mut failed) = (Vec::new(), None);
    for (rank, part) in parts.into_iter().enumerate() {
        match part.written {
            Ok(entries) => objects.extend(entries),
            Err(Refusal::NotFinite(what)) => {
                return Err(Outcome::NotFinite(format!("{what} is not finite on rank {rank}")));
            }
            Err(Refusal::Store(why)) => drop(failed.get_or_insert(why)),
        }
    }
    failed.map_or(Ok(objects), |why| Err(Outcome::Failed(why)))
}

fn outcome(error: &lambert_store::Error) -> Outcome {
    use lambert_store::Error as E;
    let message = error::chain(error);
    match error {
        // Somebody else runs this run, or what was to be committed makes no sense: trying again changes nothing.
        E::LeaseLost { .. } | E::LeaseGone { .. } | E::Refused { .. } | E::Exists { .. } => Outcome::Lost(message),
        _ => Outcome::Failed(message),
    }
}

/// What is kept when the checkpoint of `manifest` is committed.
pub fn retention(session: &Session, manifest: &Manifest) -> Retention {
    let settings = &session.config.checkpoint;
    Retention {
        last: settings.keep,
        every_steps: settings.keep_every_steps,
        named: manifest.best.iter().filter(|_| settings.keep_best).map(|best| best.checkpoint.clone()).collect(),
        known_sound: None,
    }
}

#[cfg(test)]
mod tests {
    use lambert_config::RunConfig;
    use lambert_store::checkpoint as stored;
    use lambert_store::hash::sha256;

    use super::*;

    /// Two ranks save step 20 of a run whose step 10 is saved; `lie` changes what they hand in. What comes of it, and the
    /// checkpoint that the next start takes.
    fn save(lie: impl FnOnce(&mut [Part; 2])) -> (Outcome, String, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().to_str().unwrap()).unwrap();
        let lease = Lease::take(&store).unwrap();
        let mut outcomes = Vec::new();
        let mut lie = Some(lie);
        for step in [10, 20] {
            let writer = Writer::new(&store, step, lease.attempt());
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
        assert_eq!(outcomes[0], Outcome::Committed);
        let (newest, passed_over) = stored::newest_verified(&store).unwrap();
        (outcomes.remove(1), newest.unwrap().0, passed_over.into_iter().map(|over| over.why).collect())
    }

    fn part(writer: &Writer, rank: usize) -> Part {
        let header = r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &1.0_f32.to_le_bytes()].concat();
        let entry = writer.put_object(&lambert_store::run::moments(rank, 2), file.into()).unwrap();
        Part { digest: 7, written: Ok(vec![entry]) }
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
            state: serde_json::Value::Null,
            objects: Vec::new(),
        }
    }

    fn entry(part: &mut Part) -> &mut ObjectEntry {
        &mut part.written.as_mut().ok().unwrap()[0]
    }

    const FIRST: &str = "step-000000010-a0001";
    const SECOND: &str = "step-000000020-a0001";

    #[test]
    fn honest_ranks_are_committed() {
        assert_eq!(save(|_| ()), (Outcome::Committed, SECOND.to_owned(), vec![]));
    }

    /// Whatever a rank claims of what it has written: nothing is committed that is not there, and the checkpoint before stays.
    #[test]
    fn a_rank_that_lies_about_its_objects_costs_the_save_and_nothing_else() {
        let failed = |lie: fn(&mut [Part; 2]), word: &str| match save(lie) {
            (Outcome::Failed(why) | Outcome::Lost(why), newest, over) => {
                assert!(why.contains(word), "{why}");
                assert_eq!((&*newest, over), (FIRST, vec![]), "{why}");
            }
            other => panic!("{other:?}"),
        };
        failed(|parts| entry(&mut parts[1]).path = "optimizer-00009-of-00002.safetensors".into(), "no object");
        failed(|parts| entry(&mut parts[1]).bytes += 1, "size");
        failed(|parts| entry(&mut parts[1]).path = entry(&mut parts[0]).path.clone(), "named twice");
        failed(|parts| entry(&mut parts[1]).path = "../lease-000009".into(), "not an object name");
        failed(|parts| entry(&mut parts[1]).sha256 = "0".into(), "no sha256");
    }

    /// A commit does not read the objects again. The next start does: it says why it passes the checkpoint over.
    #[test]
    fn a_rank_that_lies_about_its_bytes_is_found_by_the_next_start() {
        let (outcome, newest, over) = save(|parts| entry(&mut parts[1]).sha256 = sha256(b"something else"));
        assert_eq!((outcome, &*newest), (Outcome::Committed, FIRST));
        assert!(over.len() == 1 && over[0].contains("sha256"), "{over:?}");
    }

    #[test]
    fn a_rank_with_other_weights_and_one_that_is_not_finite_are_named() {
        let (outcome, newest, _) = save(|parts| parts[1].digest = 8);
        assert_eq!(outcome, Outcome::Apart(ReplicaMismatch { ranks: vec![0, 1], agreed: None }));
        assert_eq!(newest, FIRST);
        let (outcome, newest, _) = save(|parts| {
            parts[0].written = Err(Refusal::Store("the disk is full".into()));
            parts[1].written = Err(Refusal::NotFinite("element 3 of exp_avg of a".into()));
        });
        assert_eq!(outcome, Outcome::NotFinite("element 3 of exp_avg of a is not finite on rank 1".into()));
        assert_eq!(newest, FIRST);
    }

    #[test]
    fn elements_of_moments_are_named_by_their_parameter() {
        let slice = |tensor: &str, first, count| Slice { tensor: tensor.into(), first, count };
        let slices = [slice("a", 5, 2), slice("b", 0, 10)];
        let name = |tensor: &str, element| name_element(tensor, element, &slices);
        assert_eq!(name("exp_avg_sq", 1), "element 6 of exp_avg_sq of a");
        assert_eq!(name("exp_avg_sq", 2), "element 0 of exp_avg_sq of b");
        assert_eq!(name("exp_avg", 11), "element 9 of exp_avg of b");
        assert_eq!(name("c", 11), "element 11 of c");
    }
}
