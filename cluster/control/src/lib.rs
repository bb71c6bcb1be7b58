//! The protocol between a run's coordinator and its ranks: JSON over HTTP, without the HTTP.
//!
//! A rank is told where the coordinator listens by [`URL_VARIABLE`], and the secret of the attempt by [`TOKEN_VARIABLE`].
//! Both come through the environment, never a command line. `POST` [`REPORT_PATH`] takes a [`Report`] and answers with an
//! [`Answer`], both signed with the secret ([`Key`]): the report in the header `Authorization`, the answer in
//! [`SIGNATURE_HEADER`].
//!
//! - what a rank says once (a step, an event) is numbered and repeated until it is acknowledged ([`Outbox`], [`Inbox`]);
//! - what the coordinator orders is numbered and repeated until rank 0 has taken it ([`Order`], [`OrderSlot`]);
//! - phase, step and the time in the phase are the training thread's, so that a report from a rank whose training
//!   hangs says so ([`Phase`]);
//! - steps, evaluations and events are plain records ([`StepRecord`], [`Evaluation`], [`EventKind`]);
//! - the first report names the [`Versions`] of what the rank runs.

mod event;
mod mailbox;
mod message;
mod record;
mod scores;
mod signature;
mod version;

pub use event::{Directive, EventKind, Fault};
pub use mailbox::{Inbox, OrderSlot, Outbox};
pub use message::{Answer, Numbered, Order, Phase, Report, Saying};
pub use record::{
    BatchStats, Evaluation, GradientNoise, RankTimes, SkipCounts, StepRecord, StepTimes, Throughput, UpdateStats,
};
pub use scores::{Score, Scores};
pub use signature::{Key, SignedHead, Signer};
pub use version::{GIT, PROTOCOL, Versions};

/// Environment variable: the coordinator's address, as `http://127.0.0.1:41023`.
pub const URL_VARIABLE: &str = "LAMBERT_CONTROL_URL";
/// Environment variable: the secret of this attempt.
pub const TOKEN_VARIABLE: &str = "LAMBERT_CONTROL_TOKEN";
/// Where a rank posts its [`Report`].
pub const REPORT_PATH: &str = "/v3/report";
/// Where ranks of protocol 2 post it, unsigned, with the secret as `Authorization: Bearer`. Their reports are not taken in:
/// they only show that the ranks run another program.
pub const UNSIGNED_REPORT_PATH: &str = "/v2/report";
/// Has the signature of an [`Answer`].
pub const SIGNATURE_HEADER: &str = "lambert-signature";
/// No report is longer than this, bytes.
pub const LONGEST_REPORT: usize = 1 << 20;
