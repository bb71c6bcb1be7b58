use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::communicator::{NcclCommunicator, POLL};
use super::library::DataType;
use super::ras::{self, Member};
use super::{NcclDevice, NcclOptions, WireFormat};
use crate::reducer::OwnedAllReduce;
use crate::{Bucket, Error, MemoryLocation, PendingAllReduce, Reducer, Result};

/// Name of the operation in errors.
const BUCKET_ALL_REDUCE: &str = "NCCL bucket all-reduce";

/// Maximum wait for the communication stream to drain after an abort.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// All-reduces buckets in GPU memory.
pub struct NcclReducer<D: NcclDevice> {
    shared: Arc<ReducerState<D>>,
    world_size: usize,
    wire: WireFormat,
}

struct ReducerState<D> {
    communicator: Mutex<NcclCommunicator>,
    /// Reducer for host memory. Arrival checks use it.
    host_reducer: Mutex<Box<dyn Reducer>>,
    device: Arc<D>,
    stall_timeout: Duration,
    /// Address of the RAS service, and this rank.
    ras: Option<String>,
    member: Member,
}

impl<D: NcclDevice> NcclReducer<D> {
    pub fn new(
        communicator: NcclCommunicator,
        host_reducer: Box<dyn Reducer>,
        device: Arc<D>,
        (rank, world_size): (usize, usize),
        options: NcclOptions,
    ) -> Self {
        let (communicator, host_reducer) = (Mutex::new(communicator), Mutex::new(host_reducer));
        let member = Member { rank, world_size, process: std::process::id() };
        let NcclOptions { stall_timeout, wire, ras, .. } = options;
        let shared = ReducerState { communicator, host_reducer, device, stall_timeout, ras, member };
        Self { shared: Arc::new(shared), world_size, wire }
    }

    /// Enqueues the all-reduce of `bucket`. Returns two events. The first completes when the gradients of the bucket
    /// are computed, the second when they are summed.
    fn enqueue(&self, bucket: &Bucket) -> Result<[D::StreamEvent; 2]> {
        let (device, count) = (&self.shared.device, bucket.count());
        let address = bucket.as_mut_ptr().expose_provenance() as u64;
        device.make_current()?;
        let computed = device.record_compute_event()?;
        device.wait_event(&computed)?;
        let communicator = self.shared.communicator();
        let all_reduce = |address, data_type| {
            // SAFETY: the creator of the bucket promised its memory until the all-reduce is waited for or dropped. The
            // device promises the bf16 buffer and the stream.
            unsafe { communicator.all_reduce(address, (count, data_type), device.comm_stream()) }
        };
        match self.wire {
            _ if count == 0 => communicator.check()?,
            WireFormat::F32 => all_reduce(address, DataType::F32)?,
            WireFormat::Bf16 => {
                all_reduce(device.cast_to_bf16(address, count)?, DataType::Bf16)?;
                device.cast_from_bf16(address, count)?;
            }
        }
        Ok([computed, device.record_comm_event()?])
    }
}

impl<D: NcclDevice> ReducerState<D> {
    fn communicator(&self) -> MutexGuard<'_, NcclCommunicator> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an all-reduce of `digits` in host memory. This all-reduce completes when all ranks have started their
    /// arrival checks.
    fn start_arrival_check(&self, digits: [f32; 4]) -> Result<OwnedAllReduce> {
        let mut host_reducer = self.host_reducer.lock().unwrap_or_else(PoisonError::into_inner);
        OwnedAllReduce::start(&mut **host_reducer, digits.to_vec())
    }

    /// Starts one more arrival check to find the ranks that do not respond. A rank that responds takes part in this
    /// check, either here or with its next bucket. It learns from the check that a sum has stalled.
    fn unresponsive_ranks(&self) -> Vec<usize> {
        let check = self.start_arrival_check([STALLED, 0.0, 0.0, 0.0]);
        match check.and_then(|check| check.wait(Some(Instant::now() + self.stall_timeout / 2))) {
            Err(Error::Deadline { missing, .. }) => missing,
            Err(Error::RankGone { rank, .. }) => vec![rank],
            _ => Vec::new(),
        }
    }

    /// Describes a sum that makes no progress although all ranks have started it: the ranks that do not respond, or else those
    /// that the RAS service of NCCL suspects.
    fn stalled(&self) -> Error {
        let missing = self.unresponsive_ranks();
        let (missing, detail) = match &self.ras {
            Some(address) if missing.is_empty() => match ras::ask(address, self.member, self.stall_timeout / 4) {
                Ok(report) => (report.suspects, format!("; NCCL's RAS service: {}", report.text)),
                Err(error) => (missing, format!("; NCCL's RAS service at {address}: {error}")),
            },
            _ => (missing, String::new()),
        };
        Error::Deadline { operation: BUCKET_ALL_REDUCE, missing, detail }
    }

    /// Aborts the communicator and waits until the communication stream has drained. Returns the first error.
    fn fail(&self, error: Error) -> Error {
        if let Some(first) = self.communicator().failure() {
            return first;
        }
        let first = self.communicator().fail(error);
        let last = self.device.make_current().and_then(|()| self.device.record_comm_event());
        let begin = Instant::now();
        while let Ok(event) = &last
            && self.device.is_complete(event).is_ok_and(|is_complete| !is_complete)
            && begin.elapsed() < DRAIN_TIMEOUT
        {
            std::thread::sleep(POLL);
        }
        first
    }
}

impl<D: NcclDevice + 'static> Reducer for NcclReducer<D> {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn supports(&self, location: MemoryLocation) -> bool {
        location == MemoryLocation::Device(self.shared.device.ordinal())
    }

    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn PendingAllReduce>> {
        if bucket.count() > 0 && !self.supports(bucket.location()) {
            return Err(Error::UnsupportedLocation { reducer: "nccl", location: bucket.location() });
        }
        let [computed, summed] = self.enqueue(&bucket).map_err(|error| self.shared.fail(error))?;
        let digits = length_digits(bucket.count());
        let check = self.shared.start_arrival_check(digits).map_err(|error| self.shared.fail(error))?;
        let (shared, world_size) = (self.shared.clone(), self.world_size);
        let arrival_check = Some(check);
        Ok(Box::new(NcclAllReduce { shared, world_size, digits, arrival_check, computed, summed, is_finished: false }))
    }
}

/// First digit of a rank whose sum has stalled. A sum with it is negative.
const STALLED: f32 = -16_777_216.0;

/// Splits a length into base-4096 digits, lowest first. The sum of a digit over up to 4096 ranks is exact in f32.
fn length_digits(count: usize) -> [f32; 4] {
    std::array::from_fn(|index| ((count >> (12 * index)) & 0xfff) as f32)
}

/// All-reduce of a bucket in flight.
struct NcclAllReduce<D: NcclDevice> {
    shared: Arc<ReducerState<D>>,
    world_size: usize,
    /// Length of the bucket, as base-4096 digits.
    digits: [f32; 4],
    arrival_check: Option<OwnedAllReduce>,
    /// Event that completes when the gradients of the bucket are computed.
    computed: D::StreamEvent,
    /// Event that completes when the gradients of the bucket are summed.
    summed: D::StreamEvent,
    /// True if the all-reduce has completed or failed.
    is_finished: bool,
}

impl<D: NcclDevice> NcclAllReduce<D> {
    /// Waits until all ranks have started the bucket. Fails if the length of the bucket differs between ranks.
    fn wait_for_arrival(&mut self, deadline: Option<Instant>) -> Result<()> {
        let Some(check) = self.arrival_check.take() else { return Ok(()) };
        let sums = check.wait(deadline)?;
        if sums[0] < 0.0 {
            let detail = "; another rank reports that an earlier all-reduce makes no progress".into();
            return Err(Error::Deadline { operation: BUCKET_ALL_REDUCE, missing: Vec::new(), detail });
        }
        if sums.iter().zip(self.digits).all(|(sum, own)| *sum == own * self.world_size as f32) {
            return Ok(());
        }
        let own = self.digits.iter().rev().fold(0, |count, digit| (count << 12) + *digit as usize);
        let detail = format!("{own} values on this rank, a different number on another rank");
        Err(Error::Mismatch { operation: BUCKET_ALL_REDUCE, detail })
    }

    /// Polls until the sum is complete. The stall timeout starts when the gradients of this rank are computed.
    fn wait_for_sum(&self, deadline: Option<Instant>) -> Result<()> {
        let device = &self.shared.device;
        device.make_current()?;
        let mut computed_at = None;
        loop {
            self.shared.communicator().check()?;
            if device.is_complete(&self.summed)? {
                return Ok(());
            }
            let now = Instant::now();
            if computed_at.is_none() && device.is_complete(&self.computed)? {
                computed_at = Some(now);
            }
            if computed_at.is_some_and(|since| now >= since + self.shared.stall_timeout) {
                return Err(self.shared.stalled());
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                let (missing, detail) = (Vec::new(), String::new());
                return Err(Error::Deadline { operation: BUCKET_ALL_REDUCE, missing, detail });
            }
            std::thread::sleep(POLL);
        }
    }
}

impl<D: NcclDevice> PendingAllReduce for NcclAllReduce<D> {
    fn wait(mut self: Box<Self>, deadline: Option<Instant>) -> Result<()> {
        let result = self.wait_for_arrival(deadline).and_then(|()| self.wait_for_sum(deadline));
        self.is_finished = true;
        result.map_err(|error| self.shared.fail(error))
    }
}

/// Aborts the communicator if the all-reduce is unfinished: NCCL cannot cancel a single operation.
impl<D: NcclDevice> Drop for NcclAllReduce<D> {
    fn drop(&mut self) {
        if !self.is_finished {
            let detail = "dropped before completion".into();
            self.shared.fail(Error::Mismatch { operation: BUCKET_ALL_REDUCE, detail });
        }
    }
}
