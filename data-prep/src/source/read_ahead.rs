//! Parallel read-ahead of an object in a store.

use std::io::{Error, Read, Result};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use lambert_store::Store;

/// Bytes per request. Large requests increase the throughput. Small requests limit the memory per file, so that many
/// files can be read at the same time.
const PART_BYTES: u64 = 4 << 20;
/// Upper limit on the number of concurrent requests. In addition, each channel can contain one fetched part.
const MAX_PARALLEL: u64 = 6;

type FetchedPart = std::result::Result<Bytes, lambert_store::Error>;

/// Reads the parts of an object in parallel and returns them in order. The store retries failed requests.
pub struct ReadAhead {
    object: RemoteObject,
    parallel: usize,
    /// Part `i` arrives on channel `i % parallel`. The channels are created when the second part is read, because often
    /// only the start of an object is examined.
    parts: Vec<Receiver<FetchedPart>>,
    next: u64,
    part: Bytes,
}

#[derive(Clone)]
struct RemoteObject {
    store: Store,
    name: String,
    bytes: u64,
}

impl ReadAhead {
    /// Reads `bytes` bytes of the object `name` with a buffer of about `memory` bytes. Makes no request yet.
    pub fn new(store: Store, name: &str, bytes: u64, memory: u64) -> Self {
        let object = RemoteObject { store, name: name.to_owned(), bytes };
        let parallel = (memory / (2 * PART_BYTES)).clamp(1, MAX_PARALLEL) as usize;
        Self { object, parallel, parts: Vec::new(), next: 0, part: Bytes::new() }
    }

    fn spawn(&mut self) -> Result<()> {
        let parallel = self.parallel;
        for first in 0..parallel {
            let (sender, receiver) = sync_channel(1);
            let object = self.object.clone();
            let work = move || object.fetch_into(first as u64, parallel, &sender);
            thread::Builder::new().name("read-ahead".to_owned()).spawn(work)?;
            self.parts.push(receiver);
        }
        Ok(())
    }

    /// Waits for the next part. At the end of the object, `part` stays empty.
    fn advance(&mut self) -> Result<()> {
        if self.next == self.object.parts() {
            return Ok(());
        }
        if self.next == 1 {
            self.spawn()?;
        }
        self.part = match self.parts.get((self.next % self.parallel as u64) as usize) {
            None => self.object.fetch(0),
            Some(channel) => channel.recv().map_err(Error::other)?,
        }
        .map_err(Error::other)?;
        self.next += 1;
        Ok(())
    }
}

impl RemoteObject {
    fn parts(&self) -> u64 {
        self.bytes.div_ceil(PART_BYTES)
    }

    fn range(&self, part: u64) -> Range<u64> {
        part * PART_BYTES..((part + 1) * PART_BYTES).min(self.bytes)
    }

    fn fetch(&self, part: u64) -> FetchedPart {
        self.store.get_range(&self.name, self.range(part))
    }

    /// Fetches every `step`-th part from `first` on until the receiver is dropped. Part 0 has already been fetched.
    fn fetch_into(&self, first: u64, step: usize, sender: &SyncSender<FetchedPart>) {
        for part in (first..self.parts()).step_by(step).skip_while(|&part| part == 0) {
            let fetched = self.fetch(part);
            let failed = fetched.is_err();
            if sender.send(fetched).is_err() || failed {
                return;
            }
        }
    }
}

impl Read for ReadAhead {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.part.is_empty() {
            self.advance()?;
        }
        let chunk = self.part.split_to(self.part.len().min(buffer.len()));
        buffer[..chunk.len()].copy_from_slice(&chunk);
        Ok(chunk.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_any_size_are_read_in_order() {
        let store = Store::open("memory://ahead").unwrap();
        for (bytes, parallel) in [
            (0, 6),
            (1, 6),
            (PART_BYTES - 1, 6),
            (PART_BYTES, 1),
            (PART_BYTES + 1, 6),
            (6 * PART_BYTES, 6),
            (9 * PART_BYTES + 17, 4),
        ] {
            let content: Vec<u8> = (0..bytes).map(|at| (at / 7 % 251) as u8).collect();
            store.put("object", content.clone().into()).unwrap();
            let mut read = Vec::new();
            ReadAhead::new(store.clone(), "object", bytes, parallel * 2 * PART_BYTES).read_to_end(&mut read).unwrap();
            assert!(read == content, "{bytes} bytes");
        }
    }

    #[test]
    fn a_missing_object_is_an_error() {
        let store = Store::open("memory://ahead").unwrap();
        let mut failing = ReadAhead::new(store.clone(), "gone", 100, PART_BYTES);
        let error = failing.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no such object"), "{error}");
        // The object disappears in the middle, while other threads read it.
        store.put("going", vec![7; 3 * PART_BYTES as usize].into()).unwrap();
        let mut failing = ReadAhead::new(store.clone(), "going", 3 * PART_BYTES, 4 * PART_BYTES);
        failing.read_exact(&mut vec![0; PART_BYTES as usize]).unwrap();
        store.delete("going").unwrap();
        let error = failing.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no such object"), "{error}");
    }
}
