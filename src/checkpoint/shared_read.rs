//! Reads a checkpoint once for all ranks. Each rank reads a part of the objects from the store and sends it to the other
//! ranks, so the store sends every byte once and not once per rank.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use lambert_collective::Group;
use lambert_store::Store;
use lambert_store::checkpoint::{self as stored, BLOCK_BYTES, ObjectSink, VerifiedCheckpoint};

use super::tensor_loader::{TargetedObject, TensorLoader};
use crate::error::Error;

/// Size of the pieces that all ranks exchange in one round, bytes. Each rank has up to three rounds in memory, and two pieces
/// for each of its reader threads.
const ROUND_BYTES: u64 = 64 << 20;
/// Maximum size of a piece, bytes.
const MAX_PIECE_BYTES: u64 = 8 << 20;
/// Maximum number of ranks that read: with more, a round of the smallest pieces would be larger than [`ROUND_BYTES`].
const MAX_READING_RANKS: usize = (ROUND_BYTES / BLOCK_BYTES) as usize;
/// Number of pieces that up to 128 ranks together read concurrently. With more, each reading rank reads one piece at a time.
const CONCURRENT_READS: usize = 128;

/// A part of an object that one rank reads.
struct Piece {
    /// Index of the object.
    object: usize,
    /// Bytes of the object.
    range: Range<u64>,
}

/// Reads `objects` into their targets on all ranks of `group`. Collective.
///
/// # Errors
/// This rank cannot read its part, another rank has failed, or an object does not have the tensors of its targets.
pub fn read(
    group: &mut dyn Group,
    store: &Store,
    verified: &VerifiedCheckpoint,
    objects: Vec<TargetedObject>,
) -> Result<(), Error> {
    let world = group.world_size();
    let piece = (ROUND_BYTES / world as u64 / BLOCK_BYTES * BLOCK_BYTES).clamp(BLOCK_BYTES, MAX_PIECE_BYTES);
    read_in_pieces(group, store, verified, objects, (piece, MAX_READING_RANKS))
}

/// Reads `objects` in pieces of `piece` bytes on at most `most` ranks. In round r, rank i of n reading ranks reads piece
/// r * n + i.
fn read_in_pieces(
    group: &mut dyn Group,
    store: &Store,
    verified: &VerifiedCheckpoint,
    objects: Vec<TargetedObject>,
    (piece, most): (u64, usize),
) -> Result<(), Error> {
    let (rank, reading) = (group.rank(), group.world_size().min(most));
    let (names, targets): (Vec<String>, Vec<_>) = objects.into_iter().unzip();
    let size = |name: &String| verified.manifest.object(name).map_or(0, |entry| entry.bytes);
    let pieces = split(&names.iter().map(size).collect::<Vec<_>>(), piece);
    let own: Vec<&Piece> = match rank < reading {
        true => pieces.iter().skip(rank).step_by(reading).collect(),
        false => Vec::new(),
    };
    store.report_expected(own.iter().map(|piece| piece.range.end - piece.range.start).sum());
    let fetch = |piece: &Piece| stored::read_blocks(store, verified, &names[piece.object], piece.range.clone());
    let readers = (CONCURRENT_READS / reading).clamp(1, 16);
    let mut loaders: Vec<TensorLoader> = targets.into_iter().map(TensorLoader::new).collect();
    thread::scope(|scope| {
        let read: Vec<Receiver<_>> = (0..readers)
            .map(|reader| {
                let (sender, receiver) = sync_channel(1);
                let own = own.iter().skip(reader).step_by(readers).copied();
                scope.spawn(|| send_pieces(own, fetch, sender));
                receiver
            })
            .collect();
        // Copies the pieces of a round while the next round is exchanged. Verifies them again, because other ranks have passed
        // them on.
        let (sender, rounds) = sync_channel::<Vec<Vec<u8>>>(1);
        let (loaders, pieces, names) = (&mut loaders, &pieces, &names);
        let copier = scope.spawn(move || {
            for (piece, bytes) in pieces.iter().zip(rounds.iter().flatten()) {
                stored::check_blocks(store, verified, &names[piece.object], &piece.range, &bytes)?;
                loaders[piece.object].update(&bytes);
            }
            Ok::<(), Error>(())
        });
        for round in 0..pieces.len().div_ceil(reading) {
            // A reader thread ends early only after it has sent an error, or if it has panicked.
            let bytes = match own.get(round) {
                Some(_) => read[round % readers].recv().map_err(|_| Error::Panic {
                    thread: "a thread that reads a checkpoint",
                    message: "it has ended early".to_owned(),
                })??,
                None => Bytes::new(),
            };
            let mut gathered = group.all_gather_bytes(bytes.into())?;
            gathered.truncate(reading);
            if sender.send(gathered).is_err() {
                break;
            }
        }
        drop(sender);
        copier.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    for (name, loader) in names.iter().zip(loaders) {
        if let Some(why) = loader.finish() {
            return Err(Error::Checkpoint { name: verified.manifest.name(), message: format!("{name}: {why}") });
        }
    }
    Ok(())
}

/// Splits objects of the given sizes into pieces of `piece` bytes. The last piece of an object may be shorter.
fn split(sizes: &[u64], piece: u64) -> Vec<Piece> {
    let of_object = |(object, size): (usize, &u64)| {
        let size = *size;
        (0..size.div_ceil(piece)).map(move |i| Piece { object, range: i * piece..((i + 1) * piece).min(size) })
    };
    sizes.iter().enumerate().flat_map(of_object).collect()
}

/// Reads pieces one after the other and sends them. Ends after an error, or when the receiver is gone.
fn send_pieces<'a>(
    pieces: impl Iterator<Item = &'a Piece>,
    fetch: impl Fn(&Piece) -> lambert_store::Result<Bytes>,
    sender: SyncSender<lambert_store::Result<Bytes>>,
) {
    for piece in pieces {
        let bytes = fetch(piece);
        let is_last = bytes.is_err();
        if sender.send(bytes).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use lambert_collective::local;
    use lambert_store::checkpoint::write_single;
    use lambert_store::{TransferObserver, run};

    use super::*;
    use crate::checkpoint::snapshot::SnapshotFile;
    use crate::checkpoint::tensor_loader::LoadTarget;
    use crate::kernels::Host;
    use crate::state::Region;
    use crate::state::tests::region;

    const NAME: &str = "step-000000007-a0001";
    const MOMENTS: &str = "optimizer-00000-of-00001.safetensors";
    /// Number of elements of each tensor of [`MOMENTS`]. The object has ten blocks.
    const MOMENT_ELEMENTS: usize = 300_000;

    #[derive(Default)]
    struct Counter {
        expected: AtomicU64,
        transferred: AtomicU64,
    }

    impl TransferObserver for Counter {
        fn expected(&self, bytes: u64) {
            self.expected.fetch_add(bytes, Ordering::Relaxed);
        }

        fn transferred(&self, bytes: u64) {
            self.transferred.fetch_add(bytes, Ordering::Relaxed);
        }

        fn retracted(&self, _: u64) {}
    }

    fn values(elements: usize, seed: usize) -> Vec<f32> {
        (0..elements).map(|i| ((i * 37 + seed) % 1009) as f32).collect()
    }

    fn object(tensors: &[(&str, Vec<f32>)]) -> Bytes {
        let shapes = tensors.iter().map(|(name, values)| ((*name).to_owned(), vec![values.len()]));
        let mut file = SnapshotFile::new(Arc::new(Host), shapes).unwrap();
        let regions: Vec<_> = tensors.iter().map(|(_, values)| region(values)).collect();
        let copies = file.begin(&regions);
        file.finish(copies)
    }

    /// Writes a checkpoint of two objects to a folder.
    fn checkpoint(folder: &std::path::Path) -> (Store, VerifiedCheckpoint) {
        let store = Store::open(folder.to_str().unwrap()).unwrap();
        let manifest = serde_json::json!({
            "format": stored::FORMAT, "step": 7, "attempt": 1, "parent": null, "stage": 0, "cursor": {},
            "config_sha256": "", "world": 1, "state": {}, "objects": [],
        });
        let objects = vec![
            (run::WEIGHTS.to_owned(), object(&[("a", values(10, 1))])),
            (
                MOMENTS.to_owned(),
                object(&[("exp_avg", values(MOMENT_ELEMENTS, 2)), ("exp_avg_sq", values(MOMENT_ELEMENTS, 3))]),
            ),
        ];
        write_single(&store, serde_json::from_value(manifest).unwrap(), objects).unwrap();
        let verified = stored::verify(&store, NAME).unwrap();
        (store, verified)
    }

    fn targets(elements_of_a: usize) -> (Vec<TargetedObject>, [Region; 3]) {
        let regions = [elements_of_a, MOMENT_ELEMENTS, MOMENT_ELEMENTS].map(|elements| region(&vec![0.0; elements]));
        let target = |name: &str, region: &Region| LoadTarget {
            name: name.to_owned(),
            shape: vec![region.len() / 4],
            region: region.clone(),
        };
        let moments = vec![target("exp_avg", &regions[1]), target("exp_avg_sq", &regions[2])];
        let objects = vec![(run::WEIGHTS.to_owned(), vec![target("a", &regions[0])]), (MOMENTS.to_owned(), moments)];
        (objects, regions)
    }

    fn floats(region: &Region) -> Vec<f32> {
        let mut values = vec![0.0_f32; region.len() / 4];
        region.read(bytemuck::cast_slice_mut(&mut values));
        values
    }

    /// Reads the checkpoint on `world` ranks, of which at most five read, in pieces of `blocks` blocks. Returns the result of
    /// each rank.
    fn read_on(
        world: usize,
        blocks: u64,
        store: &Store,
        verified: &VerifiedCheckpoint,
        elements_of_a: usize,
    ) -> Vec<Result<[Vec<f32>; 3], Error>> {
        thread::scope(|scope| {
            let ranks: Vec<_> = local::group(world)
                .into_iter()
                .map(|mut ends| {
                    scope.spawn(move || {
                        let (objects, regions) = targets(elements_of_a);
                        read_in_pieces(&mut *ends.group, store, verified, objects, (blocks * BLOCK_BYTES, 5))?;
                        Ok(regions.each_ref().map(floats))
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn each_byte_is_read_once_and_reaches_all_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let (store, verified) = checkpoint(folder.path());
        let bytes: u64 = verified.manifest.objects.iter().map(|entry| entry.bytes).sum();
        let expected = [values(10, 1), values(MOMENT_ELEMENTS, 2), values(MOMENT_ELEMENTS, 3)];
        for (world, blocks) in [(1, 1), (2, 1), (3, 4), (4, 32), (13, 1)] {
            let counter = Arc::new(Counter::default());
            let observed = store.observed_by(counter.clone());
            for rank in read_on(world, blocks, &observed, &verified, 10) {
                assert!(rank.unwrap() == expected, "{world} ranks, {blocks} blocks");
            }
            let counts = [&counter.expected, &counter.transferred].map(|count| count.load(Ordering::Relaxed));
            assert_eq!(counts, [bytes, bytes], "{world} ranks, {blocks} blocks");
        }
    }

    #[test]
    fn a_changed_byte_fails_all_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let (store, verified) = checkpoint(folder.path());
        let file = store.local_path(&run::in_checkpoint(NAME, MOMENTS)).unwrap().unwrap();
        let mut content = std::fs::read(&file).unwrap();
        // A byte of the seventh block, which rank 1 of 3 reads as the eighth piece.
        content[6 * BLOCK_BYTES as usize + 5] ^= 1;
        std::fs::write(&file, content).unwrap();
        let errors: Vec<Error> =
            read_on(3, 1, &store, &verified, 10).into_iter().map(|rank| rank.unwrap_err()).collect();
        assert!(matches!(&errors[1], Error::Store(error) if error.is_damaged()), "{errors:?}");
        for rank in [0, 2] {
            assert!(matches!(&errors[rank], Error::Collective(_)), "{errors:?}");
        }
    }

    /// Group in which a rank changes a byte of each piece that it passes on.
    struct DamagingGroup(Box<dyn Group>);

    impl Group for DamagingGroup {
        fn rank(&self) -> usize {
            self.0.rank()
        }

        fn world_size(&self) -> usize {
            self.0.world_size()
        }

        fn name(&self) -> &'static str {
            self.0.name()
        }

        fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> lambert_collective::Result<()> {
            self.0.all_reduce_sum_f64(values)
        }

        fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> lambert_collective::Result<()> {
            self.0.broadcast_bytes(bytes, root)
        }

        fn gather_bytes(&mut self, bytes: &[u8], root: usize) -> lambert_collective::Result<Option<Vec<Vec<u8>>>> {
            self.0.gather_bytes(bytes, root)
        }

        fn all_gather_bytes(&mut self, bytes: Vec<u8>) -> lambert_collective::Result<Vec<Vec<u8>>> {
            let mut gathered = self.0.all_gather_bytes(bytes)?;
            gathered.iter_mut().filter_map(|bytes| bytes.last_mut()).for_each(|byte| *byte ^= 1);
            Ok(gathered)
        }

        fn barrier(&mut self) -> lambert_collective::Result<()> {
            self.0.barrier()
        }

        fn finish(self: Box<Self>) -> lambert_collective::Result<()> {
            self.0.finish()
        }
    }

    #[test]
    fn a_piece_that_changed_between_ranks_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let (store, verified) = checkpoint(folder.path());
        let mut group = DamagingGroup(local::single().group);
        let (objects, _) = targets(10);
        let error = read(&mut group, &store, &verified, objects).unwrap_err();
        assert!(matches!(&error, Error::Store(error) if error.is_damaged()), "{error}");
    }

    #[test]
    fn objects_with_other_tensors_are_rejected_on_all_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let (store, verified) = checkpoint(folder.path());
        for rank in read_on(2, 1, &store, &verified, 11) {
            let error = rank.unwrap_err().to_string();
            assert!(error.contains(NAME) && error.contains("a is F32 [10], expected F32 [11]"), "{error}");
        }
    }

    #[test]
    fn pieces_cover_every_byte_once() {
        let pieces = split(&[10, 0, 25], 10);
        let found: Vec<_> = pieces.iter().map(|piece| (piece.object, piece.range.clone())).collect();
        assert_eq!(found, [(0, 0..10), (2, 0..10), (2, 10..20), (2, 20..25)]);
    }
}
