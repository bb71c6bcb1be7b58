//! Explains why ranks exited without a reply from this coordinator: it was suspended, or the network failed.

use lambert_control::FailureKind;

use super::{AbnormalEnd, AttemptFailure, Ranks};
use crate::decide::Seconds;

/// Possible reasons why a rank got no reply from this coordinator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CoordinatorSilence {
    /// Address of the control server, e.g. `10.0.0.1:41023`.
    address: Option<String>,
    /// True if all ranks are on the host of this coordinator.
    is_on_loopback: bool,
    /// Longest suspension of this coordinator during the attempt, seconds. `None` if no suspension was long enough for
    /// ranks to exit.
    suspended: Option<Seconds>,
}

impl CoordinatorSilence {
    pub(super) fn listening(&mut self, address: String, is_on_loopback: bool) {
        (self.address, self.is_on_loopback) = (Some(address), is_on_loopback);
    }

    pub(super) fn suspended(&mut self, seconds: Seconds) {
        self.suspended = Some(self.suspended.map_or(seconds, |longest| longest.max(seconds)));
    }

    /// Returns the end of an attempt whose ranks got no reply. `first` is the rank that exited first, if known, and
    /// `since` the time of its exit.
    pub(super) fn attempt_end(&self, ranks: &Ranks, first: Option<usize>, since: Option<Seconds>) -> AbnormalEnd {
        if let Some(seconds) = self.suspended {
            return AbnormalEnd::Unsupervised(format!(
                "the workers exited: no reply from this coordinator, which was suspended for {seconds:.0} s"
            ));
        }
        let who = first.map_or_else(|| "the workers".to_owned(), |rank| ranks.who(rank));
        let address = self.address.as_ref().map_or(String::new(), |address| format!(" at {address}"));
        let last_report = first.and_then(|rank| ranks.last_report(rank));
        let silence = last_report.zip(since).map(|(last, since)| format!(" for {:.0} s", since - last));
        let host = first.and_then(|rank| ranks.host(rank)).filter(|_| !self.is_on_loopback);
        let check = match &host {
            _ if self.is_on_loopback => "check the load of this host".to_owned(),
            Some(host) => format!("check the network between this host and {host}"),
            None => "check the network between this host and the hosts of the ranks".to_owned(),
        };
        let silence = silence.unwrap_or_default();
        let message = format!("{who} exited: no reply from the coordinator{address}{silence}; {check}");
        if ranks.is_empty() {
            return AbnormalEnd::Absent(message);
        }
        let kind = if host.is_some() { FailureKind::Host } else { FailureKind::Transient };
        AbnormalEnd::Failed(AttemptFailure { message, kind, hosts: host.into_iter().collect() })
    }
}
