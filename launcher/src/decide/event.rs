//! What the decision is told and what it wants done.

use lambert_control::Directive;
use lambert_control::{Message, WorkerReport};

use super::Seconds;
use super::placement::Attempt;
use super::stop::{JobView, Signal, StopReason};

/// What happens to a coordinator. Times come with the event: nothing here looks at a clock.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Time has passed; comes many times a second.
    Tick,
    /// The first asks for a checkpoint and an end; the second, a second later or more, for an end at once.
    Signal(Signal),
    /// What Slurm says of the job that the coordinator is part of.
    Job(JobView),
    /// Somebody asks for a checkpoint and an end.
    StopRequested,
    /// Somebody asks for a checkpoint.
    SaveRequested,
    /// The lease that was wanted is held, as this attempt's.
    LeaseTaken(u32),
    /// The lease that was wanted is another coordinator's.
    LeaseHeld(u32),
    /// The lease cannot be taken, for the reason in words.
    LeaseFailed(String),
    /// The newest lease in the store.
    LeaseSeen(u32),
    /// The lease of this coordinator's attempt is not in the store any more, in words: the run was moved or removed.
    LeaseGone(u32, String),
    /// The processes of an attempt did not come into being: the exit code that follows, and the reason in words.
    StartFailed(u32, i32, String),
    /// Something came from the processes of an attempt.
    Worker(u32, FromWorkers),
}

/// What comes from the processes of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum FromWorkers {
    /// A rank's report; what it says in it comes as [`FromWorkers::Message`] right behind.
    Report(WorkerReport),
    /// A rank says something once.
    Message(usize, Message),
    /// A rank wrote a line.
    Line(usize, String),
    /// The launcher tells how the first rank died.
    Died(Death),
    /// The launcher says something else, a paragraph.
    Remark(String),
    /// The launcher, or the only rank, has ended.
    Exited(Exit),
    /// Nothing is left of the processes but these, which cannot be ended; nothing comes after it.
    Gone(Vec<String>),
}

/// How a rank died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// By this signal.
    Signal {
        /// The rank.
        rank: usize,
        /// The signal's number.
        signal: i32,
    },
    /// By the kernel, because its job's memory was used up.
    OutOfMemory {
        /// The rank.
        rank: usize,
    },
    /// With this exit code.
    Exit {
        /// The rank.
        rank: usize,
        /// Its exit code.
        code: i32,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

/// Which lease is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The one after the newest.
    Next,
    /// This one: the one after the own.
    Exactly(u32),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Take a lease; answered by [`Event::LeaseTaken`], [`Event::LeaseHeld`] or [`Event::LeaseFailed`].
    TakeLease(Wanted),
    /// Start an attempt's processes; [`FromWorkers::Gone`] or [`Event::StartFailed`] is the last that comes of it.
    Start(Attempt),
    /// Order the ranks.
    Order(Directive),
    /// End the processes of the attempt; answered by [`FromWorkers::Gone`].
    End,
    /// Ask Slurm for the state of the job; answered by [`Event::Job`].
    AskSlurm,
    /// Take the request to stop out of the store.
    ForgetStop,
    /// Tell people.
    Note(Note),
}

/// What people are told.
#[derive(Debug, Clone, PartialEq)]
pub enum Note {
    /// A stop was asked for; the ranks save a checkpoint after the next step.
    Stopping,
    /// A stop was asked for before the attempt had made a step: the ranks are ended without a checkpoint.
    NothingToSave,
    /// The job is about to end and the checkpoint is not there: the ranks are ended so that the job can be queued again.
    OutOfTime,
    /// A checkpoint was asked for.
    Saving,
    /// The last checkpoint took longer than the time between Slurm's signal and the time limit.
    ShortLead {
        /// The last checkpoint, seconds.
        save: Seconds,
        /// `slurm.lead_seconds`.
        lead: Seconds,
    },
    /// The job ends before a checkpoint like the last one can be written.
    ShortOfTime {
        /// Seconds until then.
        left: Seconds,
        /// The last checkpoint, seconds.
        save: Seconds,
    },
    /// A rank is in a phase for longer than usual, not yet for so long that it is taken for hung.
    Slow(String),
    /// An attempt has failed and another follows after a pause.
    Restart {
        /// Which rank failed and how.
        cause: String,
        /// Seconds until then.
        pause: Seconds,
        /// Whether it goes back around samples, and not on from the newest checkpoint.
        rollback: bool,
    },
    /// No rank came up; the start is tried again after a pause, and is no restart.
    Waiting {
        /// What the launcher says.
        cause: String,
        /// Seconds until then.
        pause: Seconds,
        /// Minutes until the run is given up.
        minutes_left: f64,
    },
    /// As many steps are done as before the failure.
    Recovered {
        /// The steps.
        step: u64,
        /// What that restart has cost.
        seconds: f64,
    },
    /// Processes crashed, in these words, after their work was done.
    ResultStands(String),
    /// Processes that cannot be ended are left.
    Left(Vec<String>),
}

/// How a run under this coordinator ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All steps are done.
    Finished,
    /// It stopped on request and can go on.
    Stopped(StopReason),
    /// Another coordinator has it, or the run is not there any more.
    Replaced(String),
    /// It failed, with this exit code, for the reason in words.
    Failed(i32, String),
}

impl Verdict {
    /// How a job ended under it, in words; `None` where the run is done.
    pub fn job_end(&self) -> Option<String> {
        match self {
            Self::Finished => None,
            Self::Stopped(reason) => Some(reason.to_string()),
            Self::Replaced(why) => Some(why.clone()),
            Self::Failed(_, why) => Some(format!("failed: {why}")),
        }
    }
}
