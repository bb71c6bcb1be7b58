//! Pipelined all-reduce of buckets. A bucket is split into blocks. Each block follows a schedule (schedule.rs), and
//! each step of the schedule transfers one segment. Blocks are assigned round-robin to a few lanes. Each lane processes
//! one block at a time. Several segments are therefore in flight, and buckets complete roughly in the order of their
//! starts. All ranks assign blocks to lanes in the same way, so the index of the lane is the only message tag.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::library::{MpiCommunicator, Transfer};
use super::schedule::{self, Combine, ScheduleStep};
use super::stall_detector::Deadline;
use super::wire::WireFormat;
use super::{BUCKET_ALL_REDUCE, SharedBucket, lock};
use crate::{Bucket, Error, Result};

/// Maximum size of a segment, bytes. Together, the segments of all lanes fit into the CPU cache and take 8 s on a 1
/// Mbit/s link.
const MAX_SEGMENT_BYTES: usize = 1 << 18;

/// Number of lanes, and therefore of blocks in flight.
const LANE_COUNT: usize = 4;

/// Maximum number of values in a small bucket of up to [`FEW_RANKS`] ranks. A small bucket is sent as one message and
/// reduced by recursive doubling. With more ranks, larger buckets also count as small, because the number of rounds of
/// the ring grows with the number of ranks, and that of recursive doubling only with its logarithm.
const MAX_SMALL_COUNT: usize = 8192;
const FEW_RANKS: usize = 8;

/// Limit of the growth of [`MAX_SMALL_COUNT`]. The segment of a small bucket stays below [`MAX_SEGMENT_BYTES`].
const MAX_SMALL_FACTOR: usize = MAX_SEGMENT_BYTES / 4 / MAX_SMALL_COUNT;

/// Minimum number of values of a segment when a bucket is split to fill all lanes.
const MIN_SEGMENT_COUNT: usize = 4096;

/// Buckets in flight on one rank.
pub struct SegmentPipeline {
    communicator: MpiCommunicator,
    lanes: Vec<PipelineLane>,
    /// Lane of the next block.
    next_lane: usize,
    world_size: usize,
    wire: WireFormat,
    ring: Arc<[ScheduleStep]>,
    recursive_doubling: Arc<[ScheduleStep]>,
    /// Buckets in flight, by number. Buckets are numbered in the order of their starts.
    buckets: BTreeMap<u64, BucketState>,
    started: u64,
}

struct BucketState {
    blocks_left: usize,
    deadline: Option<Deadline>,
    reply: Sender<Result<()>>,
}

/// Range of a bucket that is reduced by one run of a schedule.
struct BucketBlock {
    bucket: u64,
    memory: SharedBucket,
    range: Range<usize>,
    chunks: usize,
    wire: WireFormat,
    steps: Arc<[ScheduleStep]>,
}

impl BucketBlock {
    /// Range of chunk `chunk` in the bucket.
    fn chunk(&self, chunk: usize) -> Range<usize> {
        let (first, count) = (self.range.start, self.range.len());
        first + count * chunk / self.chunks..first + count * (chunk + 1) / self.chunks
    }

    /// Size of a chunk on the wire, bytes.
    fn chunk_bytes(&self, chunk: usize) -> usize {
        self.chunk(chunk).len() * self.wire.bytes_per_value()
    }

    /// Calls `use_values` with the values of a chunk. Fails if the bucket was canceled.
    fn with_chunk<T>(&self, chunk: usize, use_values: impl FnOnce(&mut [f32]) -> T) -> Result<T> {
        let canceled = || Error::Mismatch {
            operation: BUCKET_ALL_REDUCE,
            detail: "a started bucket was dropped before completion".into(),
        };
        let mut bucket = lock(&self.memory);
        let values = bucket.as_mut().and_then(Bucket::as_host_slice).ok_or_else(canceled)?;
        Ok(use_values(&mut values[self.chunk(chunk)]))
    }
}

/// Block that a lane is processing.
struct ActiveBlock {
    block: BucketBlock,
    step: usize,
    sending: Option<Transfer>,
    receiving: Option<Transfer>,
}

/// Queue of blocks that are processed one at a time. Each lane has a send buffer and a receive buffer of one segment.
#[derive(Default)]
struct PipelineLane {
    tag: usize,
    queue: VecDeque<BucketBlock>,
    active: Option<ActiveBlock>,
    /// Data of the next send; empty while MPI owns the buffer.
    send_buffer: Vec<u8>,
    /// Buffer of the next receive; empty while MPI owns the buffer.
    receive_buffer: Vec<u8>,
}

impl SegmentPipeline {
    pub fn new(communicator: MpiCommunicator, rank: usize, world_size: usize, wire: WireFormat) -> Self {
        let lane = |tag| PipelineLane { tag, ..PipelineLane::default() };
        Self {
            communicator,
            lanes: (0..LANE_COUNT).map(lane).collect(),
            next_lane: 0,
            world_size,
            wire,
            ring: schedule::ring(rank, world_size).into(),
            recursive_doubling: schedule::recursive_doubling(rank, world_size).into(),
            buckets: BTreeMap::new(),
            started: 0,
        }
    }

    /// Starts the all-reduce of a bucket of `count` values. The result is sent to `reply` later.
    pub fn start(&mut self, memory: &SharedBucket, count: usize, reply: Sender<Result<()>>) {
        let bucket = self.started;
        self.started += 1;
        let small = MAX_SMALL_COUNT * self.world_size.div_ceil(FEW_RANKS).min(MAX_SMALL_FACTOR);
        let is_small = count <= small;
        let (chunks, steps) = if is_small { (1, &self.recursive_doubling) } else { (self.world_size, &self.ring) };
        let wire = if is_small { WireFormat::F32 } else { self.wire };
        let segment = if is_small {
            small
        } else {
            count.div_ceil(chunks * LANE_COUNT).clamp(MIN_SEGMENT_COUNT, MAX_SEGMENT_BYTES / 4)
        };
        let block_range = |first: usize| first..count.min(first + segment * chunks);
        let ranges: Vec<_> = (0..count).step_by(segment * chunks).map(block_range).collect();
        if ranges.is_empty() || self.world_size == 1 {
            // Sending fails, here and below, if the caller has dropped its receiver. Then the result is not needed.
            let _ = reply.send(Ok(()));
            return;
        }
        self.buckets.insert(bucket, BucketState { blocks_left: ranges.len(), deadline: None, reply });
        for range in ranges {
            let block = BucketBlock { bucket, memory: memory.clone(), range, chunks, wire, steps: steps.clone() };
            self.lanes[self.next_lane].queue.push_back(block);
            self.next_lane = (self.next_lane + 1) % LANE_COUNT;
        }
    }

    /// Sets the deadline of a bucket in flight.
    pub fn set_deadline(&mut self, bucket: u64, deadline: Deadline) {
        if let Some(state) = self.buckets.get_mut(&bucket) {
            state.deadline = Some(deadline);
        }
    }

    /// Number of buckets started so far.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Returns the number of the first incomplete bucket and the earliest deadline of all incomplete buckets. Returns
    /// `None` if all buckets are complete.
    pub fn in_flight(&self) -> Option<(u64, Option<Deadline>)> {
        let (first, _) = self.buckets.first_key_value()?;
        let deadlines = self.buckets.values().filter_map(|state| state.deadline);
        Some((*first, deadlines.min_by_key(|deadline| deadline.expires_at)))
    }

    /// Advances all lanes without blocking. Returns true if any lane made progress.
    pub fn progress(&mut self) -> Result<bool> {
        let mut has_progressed = false;
        for lane in &mut self.lanes {
            while let Some(progress) = lane.progress(&self.communicator)? {
                has_progressed = true;
                if let LaneProgress::BlockComplete(bucket) = progress {
                    complete_block(&mut self.buckets, bucket);
                }
            }
        }
        Ok(has_progressed)
    }

    /// Fails all buckets. Buffers of transfers in flight are leaked to MPI.
    pub fn fail(&mut self, error: &Error) {
        for lane in &mut self.lanes {
            lane.queue.clear();
            lane.active = None;
        }
        for (_, state) in std::mem::take(&mut self.buckets) {
            let _ = state.reply.send(Err(error.clone()));
        }
    }
}

fn complete_block(buckets: &mut BTreeMap<u64, BucketState>, bucket: u64) {
    let Some(state) = buckets.get_mut(&bucket) else { return };
    state.blocks_left -= 1;
    if state.blocks_left == 0
        && let Some(state) = buckets.remove(&bucket)
    {
        let _ = state.reply.send(Ok(()));
    }
}

/// Progress of a lane.
enum LaneProgress {
    /// A segment was started, sent or received.
    Segment,
    /// A block of the bucket with this number is complete.
    BlockComplete(u64),
}

impl PipelineLane {
    /// Advances the lane by one event without blocking. Returns `None` if the lane must wait.
    fn progress(&mut self, communicator: &MpiCommunicator) -> Result<Option<LaneProgress>> {
        let Some(active) = &mut self.active else {
            return match self.queue.pop_front() {
                Some(block) => self.begin(communicator, block).map(|()| Some(LaneProgress::Segment)),
                None => Ok(None),
            };
        };
        if let Some(transfer) = &mut active.receiving
            && let Some(bytes) = transfer.poll()?
        {
            self.receive_buffer = active.receiving.take().map(Transfer::into_buffer).unwrap_or_default();
            active.combine(&mut self.receive_buffer, bytes)?;
            return Ok(Some(LaneProgress::Segment));
        }
        if let Some(transfer) = &mut active.sending
            && transfer.poll()?.is_some()
        {
            self.send_buffer = active.sending.take().map(Transfer::into_buffer).unwrap_or_default();
            return Ok(Some(LaneProgress::Segment));
        }
        if active.sending.is_some() || active.receiving.is_some() {
            return Ok(None);
        }
        if active.block.steps[active.step].receive.is_some() {
            std::mem::swap(&mut self.send_buffer, &mut self.receive_buffer);
        }
        active.step += 1;
        if active.step < active.block.steps.len() {
            return self.begin_step(communicator).map(|()| Some(LaneProgress::Segment));
        }
        let complete = active.block.bucket;
        self.active = None;
        Ok(Some(LaneProgress::BlockComplete(complete)))
    }

    /// Fills the send buffer with the first chunk of `block` and starts the first step of its schedule.
    fn begin(&mut self, communicator: &MpiCommunicator, block: BucketBlock) -> Result<()> {
        self.send_buffer.resize(MAX_SEGMENT_BYTES, 0);
        self.receive_buffer.resize(MAX_SEGMENT_BYTES, 0);
        if let Some(send) = block.steps[0].send {
            block.with_chunk(send.chunk, |values| block.wire.encode(&mut self.send_buffer, values))?;
        }
        self.active = Some(ActiveBlock { block, step: 0, sending: None, receiving: None });
        self.begin_step(communicator)
    }

    fn begin_step(&mut self, communicator: &MpiCommunicator) -> Result<()> {
        let Some(active) = &mut self.active else { return Ok(()) };
        let step = active.block.steps[active.step];
        if let Some((from, _)) = step.receive {
            let buffer = std::mem::take(&mut self.receive_buffer);
            active.receiving = Some(communicator.receive(buffer, from.rank, self.tag)?);
        }
        if let Some(to) = step.send {
            let (buffer, length) = (std::mem::take(&mut self.send_buffer), active.block.chunk_bytes(to.chunk));
            active.sending = Some(communicator.send(buffer, length, to.rank, self.tag)?);
        }
        Ok(())
    }
}

impl ActiveBlock {
    /// Combines a received segment of `received` bytes with the block, as the step requires.
    fn combine(&self, segment: &mut [u8], received: usize) -> Result<()> {
        let Some((from, combine)) = self.block.steps[self.step].receive else { return Ok(()) };
        let expected = self.block.chunk_bytes(from.chunk);
        if received != expected {
            let detail =
                format!("expected a segment of {expected} bytes, received {received} bytes from rank {}", from.rank);
            return Err(Error::Mismatch { operation: BUCKET_ALL_REDUCE, detail });
        }
        let (wire, segment) = (self.block.wire, &mut segment[..expected]);
        self.block.with_chunk(from.chunk, |values| {
            if combine != Combine::Store {
                wire.accumulate(segment, values);
            }
            if combine != Combine::Add {
                wire.decode(segment, values);
            }
        })
    }
}
