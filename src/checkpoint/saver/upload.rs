//! Uploads of a save, from the snapshot to the commit.

use lambert_collective::Group;

use super::Saver;
use crate::checkpoint::commit::{Commit, RankEntries, retention};
use crate::checkpoint::save::{Save, SaveState};
use crate::checkpoint::time_limit::SaveTiming;
use crate::error::Error;
use crate::torch;
use crate::worker::control::WorkerPhase;
use crate::worker::stopwatch::Stopwatch;

impl Saver<'_> {
    /// Starts the uploads if the snapshot is complete. With `wait`, waits for the snapshot first.
    pub(super) fn start_uploads(&mut self, wait: bool) -> Result<(), Error> {
        let Some(save) = &mut self.save else { return Ok(()) };
        if !matches!(&save.state, SaveState::Copying { copies, .. } if wait || copies.is_done()) {
            return Ok(());
        }
        self.session.control.set_phase(WorkerPhase::Save);
        let mut watch = Stopwatch::start();
        save.state = std::mem::take(&mut save.state).start_writing(&mut self.snapshot, &save.writer)?;
        let seconds = watch.lap();
        save.stall += seconds;
        self.stall += seconds;
        Ok(())
    }

    /// Gathers the entries of all ranks on rank 0, which starts the commit thread.
    pub(super) fn send_entries(&mut self, collective: &mut dyn Group) -> Result<(), Error> {
        self.session.control.set_phase(WorkerPhase::Save);
        let mut watch = Stopwatch::start();
        let Some(save) = &mut self.save else { return Ok(()) };
        let SaveState::Writing { objects, records } = std::mem::take(&mut save.state) else { return Ok(()) };
        let entries = objects.into_iter().map(|(object, slices)| {
            let mut entry = object.wait()?;
            entry.slices = slices;
            Ok(entry)
        });
        let mut digest = [0; size_of::<u64>()];
        if let Some(tensor) = &save.digest {
            torch::guard(|| self.session.kernels.read(tensor, 0, &mut digest))?;
        }
        let part = RankEntries::encode(u64::from_ne_bytes(digest), entries.collect(), self.snapshot.slices())?;
        save.state = match collective.gather_bytes(&part, 0)? {
            None => SaveState::Waiting,
            Some(parts) => {
                let Save { writer, manifest, .. } = &*save;
                let (writer, manifest, session) = (writer.clone(), manifest.clone(), self.session);
                let (store, lease) = (session.store.clone(), session.lease.clone());
                let retention = retention(session, &manifest, self.damaged.clone());
                let pruner = self.pruner.clone();
                let commit = Commit { writer, manifest, parts, records, store, lease, retention, pruner };
                let thread = std::thread::Builder::new().name("commit".to_owned()).spawn(move || commit.run());
                SaveState::Committing(thread.map_err(Error::Thread)?)
            }
        };
        save.timing = SaveTiming::InTime;
        let seconds = watch.lap();
        save.stall += seconds;
        self.stall += seconds;
        Ok(())
    }
}
