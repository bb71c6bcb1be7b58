//! Buckets in segments. A bucket is cut into blocks, and each block is summed by steps, one segment each (schedule.rs). Blocks
//! of all buckets are dealt to a few lanes in the order of the starts; a lane does one at a time, so that several segments are
//! under way and buckets are complete in about the order in which they were started. Every rank deals alike, so a lane's messages
//! need no number but the lane's.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::library::{Communicator, Transfer};
use super::schedule::{self, Effect, Step};
use super::watch::Term;
use super::wire::Wire;
use super::{BUCKET, Slot, lock};
use crate::{Bucket, Error, Result};

/// The most bytes of one segment. Those of all lanes stay in a processor's cache, and a link of 1 Mbit/s takes 8 s for them.
const SEGMENT: usize = 1 << 18;

/// Blocks under way at the same time.
const LANES: usize = 4;

/// Buckets of up to this many values are one message each, by recursive doubling.
const SMALL: usize = 8192;

/// Segments are not made smaller than this many values for the sake of having several under way.
const LEAST: usize = 4096;

/// The buckets under way of one rank.
pub struct Lanes {
    communicator: Communicator,
    lanes: Vec<Lane>,
    /// The lane of the next block.
    next: usize,
    world: usize,
    wire: Wire,
    ring: Arc<[Step]>,
    doubling: Arc<[Step]>,
    /// By their numbers, which count the starts.
    buckets: BTreeMap<u64, Started>,
    started: u64,
}

struct Started {
    blocks_left: usize,
    term: Option<Term>,
    reply: Sender<Result<()>>,
}

/// A range of a bucket that is summed in one sequence of steps.
struct Block {
    bucket: u64,
    slot: Slot,
    range: Range<usize>,
    parts: usize,
    wire: Wire,
    steps: Arc<[Step]>,
}

impl Block {
    fn part(&self, part: usize) -> Range<usize> {
        let (first, count) = (self.range.start, self.range.len());
        first + count * part / self.parts..first + count * (part + 1) / self.parts
    }

    fn bytes(&self, part: usize) -> usize {
        self.part(part).len() * self.wire.width()
    }

    /// Lends the values of a part, as long as the bucket was not given up.
    fn with<T>(&self, part: usize, use_values: impl FnOnce(&mut [f32]) -> T) -> Result<T> {
        let given_up = || Error::Mismatch { operation: BUCKET, what: "one that was started was given up".into() };
        let mut slot = lock(&self.slot);
        let values = slot.as_mut().and_then(Bucket::values).ok_or_else(given_up)?;
        Ok(use_values(&mut values[self.part(part)]))
    }
}

/// The block that a lane is at.
struct Current {
    block: Block,
    step: usize,
    sending: Option<Transfer>,
    receiving: Option<Transfer>,
}

/// A sequence of blocks, one at a time, with the memory of two segments that they all share.
#[derive(Default)]
struct Lane {
    tag: usize,
    queue: VecDeque<Block>,
    current: Option<Current>,
    /// What is sent next, or being sent (and then empty).
    held: Vec<u8>,
    /// Where the next segment is received, or being received (and then empty).
    incoming: Vec<u8>,
}

impl Lanes {
    pub fn new(communicator: Communicator, rank: usize, world: usize, wire: Wire) -> Self {
        let lane = |tag| Lane { tag, ..Lane::default() };
        Self {
            communicator,
            lanes: (0..LANES).map(lane).collect(),
            next: 0,
            world,
            wire,
            ring: schedule::ring(rank, world).into(),
            doubling: schedule::doubling(rank, world).into(),
            buckets: BTreeMap::new(),
            started: 0,
        }
    }

    /// Takes a bucket of `count` values on; `reply` is told when it holds the sum.
    pub fn start(&mut self, slot: &Slot, count: usize, reply: Sender<Result<()>>) {
        let bucket = self.started;
        self.started += 1;
        let small = count <= SMALL;
        let (parts, steps) = if small { (1, &self.doubling) } else { (self.world, &self.ring) };
        let wire = if small { Wire::F32 } else { self.wire };
        let segment = if small { SMALL } else { count.div_ceil(parts * LANES).clamp(LEAST, SEGMENT / 4) };
        let ends = |first: usize| first..count.min(first + segment * parts);
        let ranges: Vec<_> = (0..count).step_by(segment * parts).map(ends).collect();
        if ranges.is_empty() || self.world == 1 {
            // Whoever no longer listens needs no answer, here and below.
            let _ = reply.send(Ok(()));
            return;
        }
        self.buckets.insert(bucket, Started { blocks_left: ranges.len(), term: None, reply });
        for range in ranges {
            let block = Block { bucket, slot: slot.clone(), range, parts, wire, steps: steps.clone() };
            self.lanes[self.next].queue.push_back(block);
            self.next = (self.next + 1) % LANES;
        }
    }

    /// Limits the time of a bucket.
    pub fn limit(&mut self, bucket: u64, term: Term) {
        if let Some(started) = self.buckets.get_mut(&bucket) {
            started.term = Some(term);
        }
    }

    /// The buckets that were ever started.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// The number of the first bucket that is not complete, with the limit that ends first.
    pub fn waiting(&self) -> Option<(u64, Option<Term>)> {
        let (first, _) = self.buckets.first_key_value()?;
        let term = self.buckets.values().filter_map(|started| started.term).min_by_key(|term| term.end);
        Some((*first, term))
    }

    /// Goes on as far as messages have come; whether a segment is complete that was not before.
    pub fn progress(&mut self) -> Result<bool> {
        let mut moved = false;
        for lane in &mut self.lanes {
            while let Some(event) = lane.progress(&self.communicator)? {
                moved = true;
                if let Event::Block(bucket) = event {
                    complete_block(&mut self.buckets, bucket);
                }
            }
        }
        Ok(moved)
    }

    /// Gives all buckets up. MPI keeps the memory of what is under way.
    pub fn fail(&mut self, error: &Error) {
        for lane in &mut self.lanes {
            lane.queue.clear();
            lane.current = None;
        }
        for (_, started) in std::mem::take(&mut self.buckets) {
            let _ = started.reply.send(Err(error.clone()));
        }
    }
}

fn complete_block(buckets: &mut BTreeMap<u64, Started>, bucket: u64) {
    let Some(started) = buckets.get_mut(&bucket) else { return };
    started.blocks_left -= 1;
    if started.blocks_left == 0
        && let Some(started) = buckets.remove(&bucket)
    {
        let _ = started.reply.send(Ok(()));
    }
}

/// What has happened on a lane.
enum Event {
    /// A segment was sent or received.
    Segment,
    /// A block of this bucket is complete.
    Block(u64),
}

impl Lane {
    /// The next thing that happens; `None` while there is nothing but waiting.
    fn progress(&mut self, communicator: &Communicator) -> Result<Option<Event>> {
        let Some(current) = &mut self.current else {
            return match self.queue.pop_front() {
                Some(block) => self.begin(communicator, block).map(|()| Some(Event::Segment)),
                None => Ok(None),
            };
        };
        if let Some(transfer) = &mut current.receiving
            && let Some(bytes) = transfer.poll()?
        {
            self.incoming = current.receiving.take().map(Transfer::into_buffer).unwrap_or_default();
            current.combine(&mut self.incoming, bytes)?;
            return Ok(Some(Event::Segment));
        }
        if let Some(transfer) = &mut current.sending
            && transfer.poll()?.is_some()
        {
            self.held = current.sending.take().map(Transfer::into_buffer).unwrap_or_default();
            return Ok(Some(Event::Segment));
        }
        if current.sending.is_some() || current.receiving.is_some() {
            return Ok(None);
        }
        if current.block.steps[current.step].receive.is_some() {
            std::mem::swap(&mut self.held, &mut self.incoming);
        }
        current.step += 1;
        if current.step < current.block.steps.len() {
            return self.begin_step(communicator).map(|()| Some(Event::Segment));
        }
        let complete = current.block.bucket;
        self.current = None;
        Ok(Some(Event::Block(complete)))
    }

    /// Loads what the block sends first, and begins its first step.
    fn begin(&mut self, communicator: &Communicator, block: Block) -> Result<()> {
        self.held.resize(SEGMENT, 0);
        self.incoming.resize(SEGMENT, 0);
        if let Some(send) = block.steps[0].send {
            block.with(send.part, |values| block.wire.load(&mut self.held, values))?;
        }
        self.current = Some(Current { block, step: 0, sending: None, receiving: None });
        self.begin_step(communicator)
    }

    fn begin_step(&mut self, communicator: &Communicator) -> Result<()> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let step = current.block.steps[current.step];
        if let Some((from, _)) = step.receive {
            let buffer = std::mem::take(&mut self.incoming);
            current.receiving = Some(communicator.receive(buffer, from.peer, self.tag)?);
        }
        if let Some(to) = step.send {
            let (buffer, length) = (std::mem::take(&mut self.held), current.block.bytes(to.part));
            current.sending = Some(communicator.send(buffer, length, to.peer, self.tag)?);
        }
        Ok(())
    }
}

impl Current {
    /// Does with the `received` bytes of a segment what the step says.
    fn combine(&self, segment: &mut [u8], received: usize) -> Result<()> {
        let Some((from, effect)) = self.block.steps[self.step].receive else { return Ok(()) };
        let expected = self.block.bytes(from.part);
        if received != expected {
            let what = format!("a segment of {expected} bytes here, of {received} on rank {}", from.peer);
            return Err(Error::Mismatch { operation: BUCKET, what });
        }
        let (wire, segment) = (self.block.wire, &mut segment[..expected]);
        self.block.with(from.part, |values| {
            if effect != Effect::Keep {
                wire.add(segment, values);
            }
            if effect != Effect::Add {
                wire.keep(segment, values);
            }
        })
    }
}
