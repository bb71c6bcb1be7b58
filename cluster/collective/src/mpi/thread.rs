//! Communication thread: makes all MPI calls, runs the requests of its rank and replies to liveness probes.

use std::ffi::CStr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::backoff::{InFlight, PollBackoff};
use super::exchange::{ExchangeRequest, RunningExchange};
use super::library::{MpiCommunicator, MpiLibrary};
use super::liveness::{LivenessProbe, MpiTransport, StartedCounts};
use super::pipeline::SegmentPipeline;
use super::stall_detector::{Deadline, StallDetector, StallLimits, StallVerdict};
use super::{BUCKET_ALL_REDUCE, MpiOptions, SharedBucket};
use crate::{Error, Result, events};

/// Request to the communication thread.
pub enum CommRequest {
    /// Message exchange of an operation of the group.
    Exchange(ExchangeRequest),
    /// All-reduce of a bucket.
    AllReduce {
        /// Bucket; `None` after cancellation.
        bucket: SharedBucket,
        /// Number of values.
        count: usize,
        /// Channel for the result.
        reply: Sender<Result<()>>,
    },
    /// Deadline of the bucket with this number. Buckets are numbered in the order of their starts.
    SetDeadline(u64, Deadline),
    /// Finalization of MPI.
    Finalize(Sender<Result<()>>),
}

/// Name of the communication thread in lists of threads.
const NAME: &CStr = c"communication";
/// Name of the communication thread until MPI is initialized. The threads that MPI starts inherit it.
const INIT_NAME: &str = "mpi";
/// Stack of the communication thread, bytes. Open MPI expects that of a main thread.
const STACK: usize = 8 << 20;

fn set_thread_name(name: &CStr) {
    // The name only helps to read lists of threads and core files.
    let _ = rustix::thread::set_name(name);
}

/// Starts the communication thread, which initializes MPI. Returns the rank, the world size and the channel for
/// requests.
pub fn start(options: MpiOptions) -> Result<(usize, usize, Sender<CommRequest>)> {
    let (requests, receiver) = channel();
    let (ready, joined) = channel();
    let body = move || match CommService::init(options) {
        Ok((library, service)) => {
            set_thread_name(NAME);
            let _ = ready.send(Ok((library.rank(), library.size())));
            serve(library, service, &receiver);
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    };
    let refused = |error| Error::MpiUnavailable(format!("cannot start the communication thread: {error}"));
    let thread = std::thread::Builder::new().name(INIT_NAME.into()).stack_size(STACK);
    thread.spawn(body).map_err(refused)?;
    let (rank, world_size) = joined.recv().unwrap_or_else(|_| Err(thread_exited()))?;
    Ok((rank, world_size, requests))
}

/// Returns the error for an unexpected exit of the communication thread.
pub fn thread_exited() -> Error {
    Error::MpiUnavailable("the communication thread has exited".into())
}

/// Time for which MPI makes progress after the last request of a rank that leaves without finalization.
const DRAIN: Duration = Duration::from_secs(2);

/// Runs requests until MPI is finalized or all senders are dropped.
fn serve(library: MpiLibrary, mut service: CommService, requests: &Receiver<CommRequest>) {
    let mut backoff = PollBackoff::new((service.limits.stall / 8).min(Duration::from_secs(1)));
    loop {
        let next = match requests.try_recv() {
            Ok(request) => Some(request),
            Err(TryRecvError::Disconnected) => return service.drain(),
            Err(TryRecvError::Empty) if service.progress() => {
                backoff.reset();
                None
            }
            Err(TryRecvError::Empty) => match backoff.wait(requests, service.in_flight()) {
                Ok(request) => request,
                Err(()) => return service.drain(),
            },
        };
        match next {
            None => {}
            Some(CommRequest::Finalize(reply)) => {
                let result = service.failed.map_or_else(|| library.finalize(), Err);
                let _ = reply.send(result);
                // The end of the thread would run destructors of libraries that MPI has unloaded.
                loop {
                    std::thread::park();
                }
            }
            Some(request) => {
                backoff.reset();
                service.accept(request);
            }
        }
    }
}

/// State of the communication thread.
struct CommService {
    rank: usize,
    world_size: usize,
    limits: StallLimits,
    group: MpiCommunicator,
    exchange: Option<RunningExchange>,
    /// Number of operations of the group started so far.
    operations_started: u64,
    /// Pool of segment buffers.
    spare: Vec<Vec<u8>>,
    pipeline: SegmentPipeline,
    liveness: LivenessProbe,
    /// Stall detector for operations of the group, and stall detector for buckets.
    stall_detectors: [StallDetector; 2],
    /// IDs of the last probes, in the order of `stall_detectors`.
    probes: [u64; 2],
    /// First error. Every later request fails with this error.
    failed: Option<Error>,
}

impl CommService {
    fn init(options: MpiOptions) -> Result<(MpiLibrary, Self)> {
        let library = MpiLibrary::init()?;
        let (rank, world_size) = (library.rank(), library.size());
        let limits = StallLimits { stall: options.stall_timeout, straggler: options.straggler_timeout };
        let now = Instant::now();
        let service = Self {
            rank,
            world_size,
            limits,
            group: library.communicator()?,
            exchange: None,
            operations_started: 0,
            spare: Vec::new(),
            pipeline: SegmentPipeline::new(library.communicator()?, rank, world_size, options.wire),
            liveness: LivenessProbe::new(MpiTransport::new(library.communicator()?)),
            stall_detectors: [(); 2].map(|()| StallDetector::new(limits, now)),
            probes: [0; 2],
            failed: None,
        };
        Ok((library, service))
    }

    fn in_flight(&self) -> InFlight {
        match (&self.exchange, self.pipeline.in_flight()) {
            (Some(_), _) => InFlight::Group,
            (None, Some(_)) => InFlight::Buckets,
            (None, None) => InFlight::Nothing,
        }
    }

    /// Queues a request without making progress on it.
    fn accept(&mut self, request: CommRequest) {
        match request {
            CommRequest::Exchange(exchange) => {
                self.operations_started = self.operations_started.max(exchange.operation.1 + 1);
                self.stall_detectors[0].progressed(Instant::now());
                let running = RunningExchange::new(exchange);
                match &self.failed {
                    None => self.exchange = Some(running),
                    Some(error) => running.finish(Err(error.clone())),
                }
            }
            CommRequest::AllReduce { bucket, count, reply } => {
                if self.pipeline.in_flight().is_none() {
                    self.stall_detectors[1].progressed(Instant::now());
                }
                self.pipeline.start(&bucket, count, reply);
                if let Some(error) = &self.failed {
                    self.pipeline.fail(error);
                }
            }
            CommRequest::SetDeadline(bucket, deadline) => self.pipeline.set_deadline(bucket, deadline),
            // Handled in `serve`.
            CommRequest::Finalize(_) => {}
        }
    }

    /// Lets MPI send the rest of the last messages, such as the reason why this rank leaves.
    fn drain(mut self) {
        let end = Instant::now() + DRAIN;
        while Instant::now() < end {
            self.progress();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Polls everything once without blocking. Returns true if any operation made progress or any message was handled.
    fn progress(&mut self) -> bool {
        match self.poll() {
            Ok(has_progressed) => has_progressed,
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    fn fail(&mut self, error: Error) {
        if self.failed.is_none() {
            events::aborted("mpi", &error);
        }
        let error = self.failed.get_or_insert(error);
        self.pipeline.fail(error);
        if let Some(running) = self.exchange.take() {
            running.finish(Err(error.clone()));
        }
    }

    fn poll(&mut self) -> Result<bool> {
        let now = Instant::now();
        let mut has_progressed = [false; 2];
        if let Some(running) = &mut self.exchange {
            has_progressed[0] = running.progress(&self.group, &mut self.spare)?;
        }
        if let Some(complete) = self.exchange.take_if(|running| running.is_complete()) {
            complete.finish(Ok(()));
        }
        has_progressed[1] = self.pipeline.progress()?;
        for (detector, _) in self.stall_detectors.iter_mut().zip(has_progressed).filter(|(_, progressed)| *progressed) {
            detector.progressed(now);
        }
        let has_handled = self.handle_probes()?;
        self.check_stalls(now)?;
        Ok(has_handled || has_progressed.contains(&true))
    }

    /// Replies to probes and records replies. Returns true if there were any.
    fn handle_probes(&mut self) -> Result<bool> {
        let started: StartedCounts = [self.operations_started, self.pipeline.started()];
        let handled = self.liveness.progress(started)?;
        for reply in &handled.replies {
            for kind in 0..2 {
                if reply.probe == self.probes[kind] {
                    self.stall_detectors[kind].replied(reply.rank, reply.started[kind]);
                }
            }
        }
        Ok(!handled.is_empty())
    }

    /// If an operation in flight is stalled, probes the other ranks or fails the operation.
    fn check_stalls(&mut self, now: Instant) -> Result<()> {
        let group = self.exchange.as_ref().map(|running| (running.operation(), running.number(), None));
        let buckets = self.pipeline.in_flight().map(|(number, deadline)| (BUCKET_ALL_REDUCE, number, deadline));
        for (kind, in_flight) in [group, buckets].into_iter().enumerate() {
            let Some((operation, number, deadline)) = in_flight else { continue };
            match self.stall_detectors[kind].judge(now, self.rank, number, deadline) {
                StallVerdict::Wait => {}
                StallVerdict::Probe => {
                    events::stalled(operation, number);
                    self.probes[kind] = self.liveness.send_probes(self.rank, self.world_size)?;
                    self.stall_detectors[kind].probed(now, self.world_size);
                }
                StallVerdict::Hung(missing) => {
                    events::unanswered(operation, &missing);
                    return Err(Error::Deadline { operation, missing, detail: String::new() });
                }
            }
        }
        Ok(())
    }
}
