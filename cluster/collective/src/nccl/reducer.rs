use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::communicator::{Communicator, POLL};
use super::library::Element;
use super::{Device, Options, Wire};
use crate::reducer::Numbers;
use crate::{Bucket, Error, Pending, Place, Reducer, Result};

/// What a sum is called in errors.
const BUCKET: &str = "reduction of a bucket by NCCL";

/// How long the device may take to leave a bucket alone after an abort.
const LEAVE: Duration = Duration::from_secs(2);

/// Sums buckets in a card's memory.
pub struct NcclReducer<D: Device> {
    shared: Arc<Shared<D>>,
    world: usize,
    wire: Wire,
}

struct Shared<D> {
    communicator: Mutex<Communicator>,
    /// In main memory: whether all ranks have come.
    beside: Mutex<Box<dyn Reducer>>,
    device: D,
    stall: Duration,
}

impl<D: Device> NcclReducer<D> {
    pub fn new(
        communicator: Communicator,
        beside: Box<dyn Reducer>,
        device: D,
        world: usize,
        options: Options,
    ) -> Self {
        let (communicator, beside) = (Mutex::new(communicator), Mutex::new(beside));
        let shared = Shared { communicator, beside, device, stall: options.stall };
        Self { shared: Arc::new(shared), world, wire: options.wire }
    }

    /// Gives the stream for sums all that `bucket` needs; marks behind its gradients and behind its sum.
    fn enqueue(&self, bucket: &Bucket) -> Result<[D::Mark; 2]> {
        let (device, count) = (&self.shared.device, bucket.count());
        let address = bucket.first().expose_provenance() as u64;
        device.enter()?;
        let computed = device.mark_compute()?;
        device.hold_sums(&computed)?;
        let communicator = self.shared.communicator();
        let sum = |address, element| {
            // SAFETY: whoever made the bucket promised its memory until its reduction is awaited or dropped, and the device that of
            // narrowed values and the stream.
            unsafe { communicator.all_reduce(address, (count, element), device.stream()) }
        };
        match self.wire {
            _ if count == 0 => communicator.check()?,
            Wire::F32 => sum(address, Element::F32)?,
            Wire::Bf16 => {
                sum(device.narrow(address, count)?, Element::Bf16)?;
                device.widen(address, count)?;
            }
        }
        Ok([computed, device.mark_sums()?])
    }
}

impl<D: Device> Shared<D> {
    fn communicator(&self) -> MutexGuard<'_, Communicator> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn roll_call(&self, own: [f32; 4]) -> Result<Numbers> {
        let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        Numbers::start(&mut **beside, own.to_vec())
    }

    /// The ranks that do not answer where NCCL has moved nothing for so long: the others come to one more roll call, for this bucket
    /// or for their next one.
    fn silent(&self) -> Vec<usize> {
        let asked = self.roll_call([0.0; 4]);
        match asked.and_then(|asked| asked.wait(Some(Instant::now() + self.stall / 2))) {
            Err(Error::Deadline { missing, .. }) => missing,
            Err(Error::RankGone { rank, .. }) => vec![rank],
            _ => Vec::new(),
        }
    }

    /// Aborts the communicator, and waits until the device has left all buckets alone; the first error.
    fn fail(&self, error: Error) -> Error {
        if let Some(first) = self.communicator().failure() {
            return first;
        }
        let first = self.communicator().fail(error);
        let last = self.device.enter().and_then(|()| self.device.mark_sums());
        let begin = Instant::now();
        while let Ok(mark) = &last
            && self.device.is_reached(mark).is_ok_and(|reached| !reached)
            && begin.elapsed() < LEAVE
        {
            std::thread::sleep(POLL);
        }
        first
    }
}

impl<D: Device + 'static> Reducer for NcclReducer<D> {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn reaches(&self, place: Place) -> bool {
        place == Place::Device(self.shared.device.number())
    }

    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn Pending>> {
        if bucket.count() > 0 && !self.reaches(bucket.place()) {
            return Err(Error::Unreachable { reducer: "nccl", place: bucket.place() });
        }
        let [computed, summed] = self.enqueue(&bucket).map_err(|error| self.shared.fail(error))?;
        let own = digits(bucket.count());
        let roll_call = self.shared.roll_call(own).map_err(|error| self.shared.fail(error))?;
        let (shared, world) = (self.shared.clone(), self.world);
        Ok(Box::new(Sum { shared, world, own, roll_call: Some(roll_call), computed, summed, over: false }))
    }
}

/// A length in numbers whose sums over any world are exact in f32.
fn digits(count: usize) -> [f32; 4] {
    std::array::from_fn(|place| ((count >> (12 * place)) & 0xfff) as f32)
}

/// A bucket's sum under way.
struct Sum<D: Device> {
    shared: Arc<Shared<D>>,
    world: usize,
    own: [f32; 4],
    roll_call: Option<Numbers>,
    computed: D::Mark,
    summed: D::Mark,
    /// Whether it is complete, or has failed.
    over: bool,
}

impl<D: Device> Sum<D> {
    /// Returns when all ranks have started the bucket, and one of the same length.
    fn all_have_come(&mut self, deadline: Option<Instant>) -> Result<()> {
        let Some(roll_call) = self.roll_call.take() else { return Ok(()) };
        let sums = roll_call.wait(deadline)?;
        if sums.iter().zip(self.own).all(|(sum, own)| *sum == own * self.world as f32) {
            return Ok(());
        }
        let own = self.own.iter().rev().fold(0, |count, digit| (count << 12) + *digit as usize);
        Err(Error::Mismatch { operation: BUCKET, what: format!("{own} values here, not as many on another rank") })
    }

    /// Polls until the sum is there. Its limit begins when this rank's own values are.
    fn complete(&self, deadline: Option<Instant>) -> Result<()> {
        let device = &self.shared.device;
        device.enter()?;
        let mut computed = None;
        loop {
            self.shared.communicator().check()?;
            if device.is_reached(&self.summed)? {
                return Ok(());
            }
            let now = Instant::now();
            if computed.is_none() && device.is_reached(&self.computed)? {
                computed = Some(now);
            }
            if computed.is_some_and(|since| now >= since + self.shared.stall) {
                return Err(Error::Deadline { operation: BUCKET, missing: self.shared.silent() });
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::Deadline { operation: BUCKET, missing: Vec::new() });
            }
            std::thread::sleep(POLL);
        }
    }
}

impl<D: Device> Pending for Sum<D> {
    fn wait(mut self: Box<Self>, deadline: Option<Instant>) -> Result<()> {
        let summed = self.all_have_come(deadline).and_then(|()| self.complete(deadline));
        self.over = true;
        summed.map_err(|error| self.shared.fail(error))
    }
}

/// NCCL cannot take one sum back: one that is given up takes the communicator along.
impl<D: Device> Drop for Sum<D> {
    fn drop(&mut self) {
        if !self.over {
            self.shared.fail(Error::Mismatch { operation: BUCKET, what: "it was given up".into() });
        }
    }
}
