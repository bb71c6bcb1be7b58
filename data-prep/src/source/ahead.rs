//! An object of a store, read ahead in parallel parts and handed out in order.

use std::io::{Error, Read, Result};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use lambert_store::Store;

/// Bytes of one request to a store: enough for a good rate, little enough for many files at a time.
const PART: u64 = 4 << 20;
/// Requests under way at once, at the most. As many parts again wait to be taken.
const MOST: u64 = 6;

type Part = std::result::Result<Bytes, lambert_store::Error>;

/// See the module. The store retries each part by itself.
pub struct Ahead {
    object: Object,
    parallel: usize,
    /// Part `i` comes through channel `i` modulo their number. There are none before the second part is wanted: of many
    /// objects only the beginning is looked at, or they have no more.
    parts: Vec<Receiver<Part>>,
    next: u64,
    part: Bytes,
}

#[derive(Clone)]
struct Object {
    store: Store,
    name: String,
    bytes: u64,
}

impl Ahead {
    /// Reads `bytes` bytes of the object `name`, with about `memory` bytes of it in memory; asks for nothing yet.
    pub fn new(store: Store, name: &str, bytes: u64, memory: u64) -> Self {
        let object = Object { store, name: name.to_owned(), bytes };
        let parallel = (memory / (2 * PART)).clamp(1, MOST) as usize;
        Self { object, parallel, parts: Vec::new(), next: 0, part: Bytes::new() }
    }

    fn start(&mut self) -> Result<()> {
        let parallel = self.parallel;
        for first in 0..parallel {
            let (sender, receiver) = sync_channel(1);
            let object = self.object.clone();
            let work = move || object.send(first as u64, parallel, &sender);
            thread::Builder::new().name("read-ahead".to_owned()).spawn(work)?;
            self.parts.push(receiver);
        }
        Ok(())
    }

    /// Waits for the next part; leaves an empty one at the end.
    fn advance(&mut self) -> Result<()> {
        if self.next == self.object.parts() {
            return Ok(());
        }
        if self.next == 1 {
            self.start()?;
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

impl Object {
    fn parts(&self) -> u64 {
        self.bytes.div_ceil(PART)
    }

    fn range(&self, part: u64) -> Range<u64> {
        part * PART..((part + 1) * PART).min(self.bytes)
    }

    fn fetch(&self, part: u64) -> Part {
        self.store.get_range(&self.name, self.range(part))
    }

    /// Fetches every part whose number is `step` above the one before, from `first` on, as long as somebody takes them;
    /// the first of all is there.
    fn send(&self, first: u64, step: usize, sender: &SyncSender<Part>) {
        for part in (first..self.parts()).step_by(step).skip_while(|&part| part == 0) {
            let fetched = self.fetch(part);
            let failed = fetched.is_err();
            if sender.send(fetched).is_err() || failed {
                return;
            }
        }
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.part.is_empty() {
            self.advance()?;
        }
        let taken = self.part.split_to(self.part.len().min(buffer.len()));
        buffer[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_in_order_whatever_the_size() {
        let store = Store::open("memory://ahead").unwrap();
        for (bytes, parallel) in
            [(0, 6), (1, 6), (PART - 1, 6), (PART, 1), (PART + 1, 6), (6 * PART, 6), (9 * PART + 17, 4)]
        {
            let content: Vec<u8> = (0..bytes).map(|at| (at / 7 % 251) as u8).collect();
            store.put("object", content.clone().into()).unwrap();
            let mut read = Vec::new();
            Ahead::new(store.clone(), "object", bytes, parallel * 2 * PART).read_to_end(&mut read).unwrap();
            assert!(read == content, "{bytes} bytes");
        }
    }

    #[test]
    fn an_object_that_has_gone_is_an_error() {
        let store = Store::open("memory://ahead").unwrap();
        let mut failing = Ahead::new(store.clone(), "gone", 100, PART);
        let error = failing.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no such object"), "{error}");
        // In the middle, where other threads read.
        store.put("going", vec![7; 3 * PART as usize].into()).unwrap();
        let mut failing = Ahead::new(store.clone(), "going", 3 * PART, 4 * PART);
        failing.read_exact(&mut vec![0; PART as usize]).unwrap();
        store.delete("going").unwrap();
        let error = failing.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no such object"), "{error}");
    }
}
