//! Control protocol between the coordinator of a run and its workers: JSON over HTTP. This crate has the messages and
//! the protocol state, but no HTTP code.
//!
//! A worker finds the URL of the coordinator in the variable [`URL_VARIABLE`] and the secret of the attempt in
//! [`TOKEN_VARIABLE`]. Both values are passed in the environment, never on a command line. A worker sends `POST`
//! [`REPORT_PATH`] with a [`WorkerReport`] and gets a [`ReportReply`]. The bodies of report and reply are signed with
//! the secret ([`SigningKey`]). The signature of the report is in the `Authorization` header, the signature of the
//! reply in [`SIGNATURE_HEADER`].
//!
//! - Messages (step records, events) have sequence numbers and are resent until acknowledged ([`Outbox`], [`Inbox`]).
//! - Commands have sequence numbers and are resent until rank 0 acknowledges them ([`CoordinatorCommand`],
//!   [`CommandSlot`]).
//! - Reports contain the step of the training thread, its phase and the time in this phase ([`WorkerPhase`]). So
//!   reports reveal a training thread that hangs.
//! - Steps, evaluations and events are plain records ([`StepRecord`], [`Evaluation`], [`EventKind`]).
//! - A worker reports its software versions until the first reply arrives ([`Versions`]).

mod evaluation;
mod event;
mod gpu;
mod mailbox;
mod message;
mod record;
mod scores;
mod signature;
mod version;

pub use evaluation::{Evaluation, ExtraEvaluation};
pub use event::{Directive, EventKind, FailureKind};
pub use gpu::{GpuRanges, GpuSample, GpuStatus, ValueRange, xid_text};
pub use mailbox::{CommandSlot, Inbox, Outbox};
pub use message::{CoordinatorCommand, Message, ReportReply, SequencedMessage, WorkerPhase, WorkerReport};
pub use record::{
    BatchStats, DatasetStats, GradientNoise, RankTimes, SkipCounts, StepRecord, StepTimes, Throughput, UpdateStats,
};
pub use scores::{Score, Scores};
pub use signature::{ReportHeader, ReportSigner, SigningKey};
pub use version::{GIT_COMMIT, PROTOCOL, Versions, version_text};

/// Environment variable with the coordinator URL, such as `http://127.0.0.1:41023`.
pub const URL_VARIABLE: &str = "LAMBERT_CONTROL_URL";
/// Environment variable with the secret of the attempt.
pub const TOKEN_VARIABLE: &str = "LAMBERT_CONTROL_TOKEN";
/// URL path of signed reports ([`WorkerReport`]).
pub const REPORT_PATH: &str = "/v4/report";
/// URL path of the unsigned reports of protocol 2, which send the secret as `Authorization: Bearer`. The coordinator
/// uses only the versions in these reports, to report a version mismatch.
pub const UNSIGNED_REPORT_PATH: &str = "/v2/report";
/// HTTP header with the signature of a [`ReportReply`].
pub const SIGNATURE_HEADER: &str = "lambert-signature";
/// Maximum size of a report, bytes.
pub const MAX_REPORT_BYTES: usize = 1 << 20;
