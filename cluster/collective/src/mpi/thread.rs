//! The communication thread: it alone calls MPI, carries out what the ends of its rank ask for, and tells others where it is.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::exchange::{Exchange, Running};
use super::lanes::Lanes;
use super::library::{Communicator, Library};
use super::pace::Pace;
use super::roll_call::{Position, RollCall};
use super::watch::{Limits, Term, Verdict, Watch};
use super::{BUCKET, Options, Slot};
use crate::{Error, Result, events};

/// What the ends of a rank ask of its communication thread.
pub enum Request {
    /// Messages of an operation of the group.
    Exchange(Exchange),
    /// The sum of a bucket of `count` values.
    Start {
        /// The bucket, as long as it was not given up.
        slot: Slot,
        /// Its values.
        count: usize,
        /// Who waits for it.
        reply: Sender<Result<()>>,
    },
    /// A limit for the bucket of this number, counted by starts.
    Limit(u64, Term),
    /// The end of MPI in this process.
    Finish(Sender<Result<()>>),
}

/// Starts the thread, which initializes MPI; this rank's number, the number of ranks, and the way to the thread.
pub fn start(options: Options) -> Result<(usize, usize, Sender<Request>)> {
    let (requests, receiver) = channel();
    let (ready, joined) = channel();
    let body = move || match Service::join(options) {
        Ok((library, service)) => {
            let _ = ready.send(Ok((library.rank(), library.size())));
            serve(library, service, &receiver);
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    };
    let refused = |error| Error::Unusable(format!("no communication thread: {error}"));
    std::thread::Builder::new().name("communication".into()).spawn(body).map_err(refused)?;
    let (rank, world) = joined.recv().unwrap_or_else(|_| Err(gone()))?;
    Ok((rank, world, requests))
}

/// What is said where the thread has ended before its time.
pub fn gone() -> Error {
    Error::Unusable("the communication thread has ended".into())
}

/// Carries out requests until MPI is finished or nobody is left to ask.
fn serve(library: Library, mut service: Service, requests: &Receiver<Request>) {
    let mut pace = Pace::new((service.limits.stall / 8).min(Duration::from_secs(1)));
    loop {
        let next = match requests.try_recv() {
            Ok(request) => Some(request),
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) if service.progress() => {
                pace.moved();
                None
            }
            Err(TryRecvError::Empty) => match pace.wait(requests, service.is_idle()) {
                Ok(request) => request,
                Err(()) => return,
            },
        };
        match next {
            None => {}
            Some(Request::Finish(reply)) => {
                let result = service.failed.map_or_else(|| library.finalize(), Err);
                let _ = reply.send(result);
                return;
            }
            Some(request) => {
                pace.moved();
                service.take(request);
            }
        }
    }
}

/// The state of the communication thread.
struct Service {
    rank: usize,
    world: usize,
    limits: Limits,
    group: Communicator,
    exchange: Option<Running>,
    /// Operations of the group that were started.
    operations: u64,
    spare: Vec<Vec<u8>>,
    lanes: Lanes,
    roll_call: RollCall,
    /// Of the group, and of the buckets.
    watches: [Watch; 2],
    /// The numbers of their last questions.
    questions: [u64; 2],
    /// What made the ranks useless to each other.
    failed: Option<Error>,
}

impl Service {
    fn join(options: Options) -> Result<(Library, Self)> {
        let library = Library::init()?;
        let (rank, world) = (library.rank(), library.size());
        let limits = Limits { stall: options.stall, absence: options.absence };
        let now = Instant::now();
        let service = Self {
            rank,
            world,
            limits,
            group: library.communicator()?,
            exchange: None,
            operations: 0,
            spare: Vec::new(),
            lanes: Lanes::new(library.communicator()?, rank, world, options.wire),
            roll_call: RollCall::new(library.communicator()?),
            watches: [(); 2].map(|()| Watch::new(limits, now)),
            questions: [0; 2],
            failed: None,
        };
        Ok((library, service))
    }

    fn is_idle(&self) -> bool {
        self.exchange.is_none() && self.lanes.waiting().is_none()
    }

    /// Takes a request on. Nothing of it is done yet.
    fn take(&mut self, request: Request) {
        match request {
            Request::Exchange(exchange) => {
                self.operations = self.operations.max(exchange.operation.1 + 1);
                self.watches[0].moved(Instant::now());
                let running = Running::new(exchange);
                match &self.failed {
                    None => self.exchange = Some(running),
                    Some(error) => running.end(Err(error.clone())),
                }
            }
            Request::Start { slot, count, reply } => {
                if self.lanes.waiting().is_none() {
                    self.watches[1].moved(Instant::now());
                }
                self.lanes.start(&slot, count, reply);
                if let Some(error) = &self.failed {
                    self.lanes.fail(error);
                }
            }
            Request::Limit(bucket, term) => self.lanes.limit(bucket, term),
            // That is the end of the loop.
            Request::Finish(_) => {}
        }
    }

    /// Polls everything once; whether a segment is complete that was not before.
    fn progress(&mut self) -> bool {
        match self.poll() {
            Ok(moved) => moved,
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
        self.lanes.fail(error);
        if let Some(running) = self.exchange.take() {
            running.end(Err(error.clone()));
        }
    }

    fn poll(&mut self) -> Result<bool> {
        let now = Instant::now();
        let mut moved = [false; 2];
        if let Some(running) = &mut self.exchange {
            moved[0] = running.progress(&self.group, &mut self.spare)?;
        }
        if let Some(complete) = self.exchange.take_if(|running| running.is_complete()) {
            complete.end(Ok(()));
        }
        moved[1] = self.lanes.progress()?;
        for (watch, _) in self.watches.iter_mut().zip(moved).filter(|(_, moved)| *moved) {
            watch.moved(now);
        }
        self.answer()?;
        self.judge(now)?;
        Ok(moved.contains(&true))
    }

    fn answer(&mut self) -> Result<()> {
        let position: Position = [self.operations, self.lanes.started()];
        while let Some(answer) = self.roll_call.progress(position)? {
            for kind in 0..2 {
                if answer.question == self.questions[kind] {
                    self.watches[kind].answered(answer.rank, answer.position[kind]);
                }
            }
        }
        Ok(())
    }

    /// Asks the others where they are, or gives up, when it is time.
    fn judge(&mut self, now: Instant) -> Result<()> {
        let group = self.exchange.as_ref().map(|running| (running.operation(), running.number(), None));
        let buckets = self.lanes.waiting().map(|(number, term)| (BUCKET, number, term));
        for (kind, waiting) in [group, buckets].into_iter().enumerate() {
            let Some((operation, number, term)) = waiting else { continue };
            match self.watches[kind].judge(now, self.rank, number, term) {
                Verdict::Wait => {}
                Verdict::Ask => {
                    events::stalled(operation, number);
                    self.questions[kind] = self.roll_call.ask(self.rank, self.world)?;
                    self.watches[kind].asked(now, self.world);
                }
                Verdict::Hung(missing) => {
                    events::unanswered(operation, &missing);
                    return Err(Error::Deadline { operation, missing });
                }
            }
        }
        Ok(())
    }
}
