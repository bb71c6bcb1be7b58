//! Inputs and outputs of the decisions of the coordinator.

use lambert_config::exit;
use lambert_control::Directive;
use lambert_control::{Message, WorkerReport};

use super::Seconds;
use super::placement::Attempt;
use super::stop::{JobView, Signal, StopReason};
use crate::text::signal_name;

/// Coordinator event. The time of the event is passed separately.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Timer tick, several times a second.
    Tick,
    /// The process of the coordinator was suspended, or did nothing, for this many seconds.
    Suspended(Seconds),
    /// A signal. The first signal requests a checkpoint and a stop. A second signal at least one second later may
    /// request an immediate end; see `Requests::signal`.
    Signal(Signal),
    /// State of the Slurm job in which the coordinator runs.
    Job(JobView),
    /// A user requested a checkpoint and a stop.
    StopRequested,
    /// A user requested a checkpoint.
    SaveRequested,
    /// This coordinator took the requested lease. The number is that of the attempt.
    LeaseTaken(u32),
    /// Another coordinator holds the requested lease. The number is that of its attempt.
    LeaseHeld(u32),
    /// The lease could not be taken, with the reason.
    LeaseFailed(String),
    /// Number of the newest lease in the store.
    LeaseSeen(u32),
    /// The lease of this attempt is missing from the store, because the run was moved or removed. The text has details.
    LeaseGone(u32, String),
    /// The processes of an attempt could not be started. Fields: attempt, exit code, reason.
    StartFailed(u32, i32, String),
    /// An event from the processes of an attempt.
    Worker(u32, WorkerEvent),
}

/// Events from the processes of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerEvent {
    /// The coordinator listens for reports of the ranks.
    Listening {
        /// Address and port, e.g. `10.0.0.1:41023`.
        address: String,
        /// True if only ranks on this host reach the address.
        is_loopback: bool,
    },
    /// Report of a rank. The messages of the report follow as [`WorkerEvent::Message`].
    Report(WorkerReport),
    /// A message from a rank, delivered once.
    Message(usize, Message),
    /// A line of output from a rank.
    Line(usize, String),
    /// The launcher named the node of a rank.
    Node(usize, String),
    /// The launcher reported how the first rank died.
    Died(RankDeath),
    /// One paragraph of other launcher output.
    Remark(String),
    /// The launcher, or the only rank, exited.
    Exited(ProcessExit),
    /// Last event of an attempt: all processes have ended, except the listed processes, which cannot be killed.
    Gone(Vec<String>),
}

/// Death of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankDeath {
    /// Killed by a signal.
    Signal {
        rank: usize,
        /// Signal number.
        signal: i32,
    },
    /// Killed by the kernel because the job ran out of memory.
    OutOfMemory { rank: usize },
    /// Exited with a nonzero code.
    Exit {
        rank: usize,
        /// Exit code.
        code: i32,
    },
}

/// Exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessExit {
    /// Exit code.
    Code(i32),
    /// Signal number.
    Signal(i32),
}

impl std::fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "killed by {}", signal_name(*signal)),
        }
    }
}

/// Requested lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRequest {
    /// The lease that follows the newest lease in the store.
    Next,
    /// The lease with this number, which follows the last lease of this coordinator.
    Exactly(u32),
}

/// Actions for the coordinator to execute.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Takes a lease. The response is [`Event::LeaseTaken`], [`Event::LeaseHeld`] or [`Event::LeaseFailed`].
    TakeLease(LeaseRequest),
    /// Starts the processes of an attempt. The last event of the attempt is [`WorkerEvent::Gone`] or
    /// [`Event::StartFailed`].
    Start(Attempt),
    /// Sends a command to the ranks.
    Command(Directive),
    /// Terminates the processes of the attempt. The response is [`WorkerEvent::Gone`].
    End,
    /// Queries Slurm for the state of the job. The response is [`Event::Job`].
    AskSlurm,
    /// Deletes the stop request from the store.
    ForgetStop,
    /// Notifies the user.
    Note(Note),
}

/// Kind of a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartKind {
    /// The run resumes from its newest checkpoint.
    Resume,
    /// The run rolls back and skips samples.
    Rollback,
}

/// Notifications for the user.
#[derive(Debug, Clone, PartialEq)]
pub enum Note {
    /// A stop was requested. The ranks save a checkpoint after the next step.
    Stopping,
    /// A stop was requested before the attempt completed a step. The ranks are terminated.
    NothingToSave,
    /// The job is about to end and the checkpoint is incomplete. The ranks are terminated so that the job can be
    /// requeued.
    OutOfTime,
    /// A checkpoint was requested.
    Saving,
    /// The last checkpoint took longer than the time between Slurm's signal and the time limit.
    ShortLead {
        /// Duration of the last checkpoint, seconds.
        save: Seconds,
        /// `slurm.lead_seconds`.
        lead: Seconds,
    },
    /// The job ends too soon for a checkpoint that takes as long as the last checkpoint.
    ShortOfTime {
        /// Seconds until the job ends.
        left: Seconds,
        /// Duration of the last checkpoint, seconds.
        save: Seconds,
    },
    /// A rank has been in the same phase for an unusually long time but has not timed out.
    Slow(String),
    /// An attempt failed. Another attempt follows after a pause.
    Restart {
        /// Cause of the failure.
        cause: String,
        /// Seconds until the next attempt.
        pause: Seconds,
        kind: RestartKind,
    },
    /// No rank has reported. The coordinator retries the start after a pause. The retry does not count as a restart.
    Waiting {
        /// Message from the launcher.
        cause: String,
        /// Seconds until the retry.
        pause: Seconds,
        /// Minutes until the coordinator gives up the run.
        minutes_left: f64,
    },
    /// The run has again reached the step at which it last failed.
    Recovered {
        step: u64,
        /// Cost of the restart, seconds.
        seconds: f64,
    },
    /// Processes crashed after all work was done. The text describes the crash.
    ResultStands(String),
    /// The processes of an attempt could not be started after a request to end it. The text is the cause.
    StartFailed(String),
    /// The ranks failed before the checkpoint that a time limit, a preemption or a requeue requires. The text is the cause.
    StopFailed(String),
    /// Processes that cannot be killed remain.
    LeftoverProcesses(Vec<String>),
}

/// Outcome of a run under this coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All steps are done.
    Finished,
    /// Stopped on request. The run can be resumed.
    Stopped(StopReason),
    /// Another coordinator took the run over, or the run no longer exists.
    Replaced(String),
    /// Failed: exit code and reason.
    Failed(i32, String),
}

impl Verdict {
    /// True if the batch script of a Slurm job may requeue the job.
    pub fn is_requeued(&self) -> bool {
        match self {
            Self::Stopped(reason) => *reason != StopReason::User,
            Self::Failed(code, _) => *code == exit::FAILED,
            Self::Finished | Self::Replaced(_) => false,
        }
    }

    /// Describes why the coordinator ended. Returns `None` if the run is done.
    pub fn job_end(&self) -> Option<String> {
        match self {
            Self::Finished => None,
            Self::Stopped(reason) => Some(reason.to_string()),
            Self::Replaced(why) => Some(why.clone()),
            Self::Failed(_, why) => Some(format!("failed: {why}")),
        }
    }
}
