//! The protocol between a run's coordinator and its ranks: JSON over HTTP, without the HTTP.
//!
//! A rank is told where the coordinator listens by [`URL_VARIABLE`] and proves that it belongs to the attempt with the
//! secret in [`TOKEN_VARIABLE`], sent as `Authorization: Bearer`. Both come through the environment, never a command
//! line. `POST` [`REPORT_PATH`] takes a [`Report`] and answers with an [`Answer`]:
//!
//! - what a rank says once (a step, an event) is numbered and repeated until it is acknowledged ([`Outbox`], [`Inbox`]);
//! - what the coordinator orders is numbered and repeated until rank 0 has taken it ([`Order`], [`OrderSlot`]);
//! - phase, step and the time in the phase are the training thread's, so that a report from a rank whose training
//!   hangs says so ([`Phase`]);
//! - the first report names the [`Versions`] of what the rank runs.

mod mailbox;
mod message;
mod version;

pub use mailbox::{Inbox, OrderSlot, Outbox};
pub use message::{Answer, Numbered, Order, Phase, Report, Saying};
pub use version::{GIT, Versions};

/// Environment variable: the coordinator's address, as `http://127.0.0.1:41023`.
pub const URL_VARIABLE: &str = "LAMBERT_CONTROL_URL";
/// Environment variable: the secret of this attempt.
pub const TOKEN_VARIABLE: &str = "LAMBERT_CONTROL_TOKEN";
/// Where a rank posts its [`Report`].
pub const REPORT_PATH: &str = "/v2/report";
/// No report is longer than this, bytes.
pub const LONGEST_REPORT: usize = 1 << 20;
