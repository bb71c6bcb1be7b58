//! Control protocol between a run's coordinator and its workers: JSON over HTTP, without the HTTP.
//!
//! A worker finds the coordinator's address in [`URL_VARIABLE`] and the attempt's secret in [`TOKEN_VARIABLE`]. Both are passed in
//! the environment, never on a command line. A worker sends `POST` [`REPORT_PATH`] with a [`WorkerReport`] and gets a
//! [`ReportReply`]. Both bodies are signed with the secret ([`SigningKey`]): the report in the `Authorization` header, the
//! reply in [`SIGNATURE_HEADER`].
//!
//! - Messages (step records, events) have sequence numbers and are resent until acknowledged ([`Outbox`], [`Inbox`]).
//! - Commands have sequence numbers and are resent until rank 0 acknowledges them ([`CoordinatorCommand`], [`CommandSlot`]).
//! - Phase, step and time in the phase describe the training thread, so reports reveal a hung training thread
//!   ([`WorkerPhase`]).
//! - Steps, evaluations and events are plain records ([`StepRecord`], [`Evaluation`], [`EventKind`]).
//! - The first report carries the worker's software versions ([`Versions`]).

mod event;
mod mailbox;
mod message;
mod record;
mod scores;
mod signature;
mod version;

pub use event::{Directive, EventKind, FailureKind};
pub use mailbox::{CommandSlot, Inbox, Outbox};
pub use message::{CoordinatorCommand, Message, ReportReply, SequencedMessage, WorkerPhase, WorkerReport};
pub use record::{
    BatchStats, Evaluation, GradientNoise, RankTimes, SkipCounts, StepRecord, StepTimes, Throughput, UpdateStats,
};
pub use scores::{Score, Scores};
pub use signature::{ReportHeader, ReportSigner, SigningKey};
pub use version::{GIT_COMMIT, PROTOCOL, Versions, version_text};

/// Environment variable with the coordinator's URL, such as `http://127.0.0.1:41023`.
pub const URL_VARIABLE: &str = "LAMBERT_CONTROL_URL";
/// Environment variable with the attempt's secret.
pub const TOKEN_VARIABLE: &str = "LAMBERT_CONTROL_TOKEN";
/// URL path of signed reports ([`WorkerReport`]).
pub const REPORT_PATH: &str = "/v4/report";
/// URL path of protocol 2: unsigned reports with the secret as `Authorization: Bearer`. The coordinator only takes the versions
/// from them, to report a version mismatch.
pub const UNSIGNED_REPORT_PATH: &str = "/v2/report";
/// HTTP header with the signature of a [`ReportReply`].
pub const SIGNATURE_HEADER: &str = "lambert-signature";
/// Maximum size of a report, bytes.
pub const MAX_REPORT_BYTES: usize = 1 << 20;
