//! Retries with exponential backoff, and time limits of requests.
//!
//! Replaces the retries of object_store. This loop handles create-only writes that succeeded although the response was
//! lost. It never resumes a partial read, and it logs retries.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::slots::{Slot, TransferSlots};

mod failure;
mod log;
mod progress;

use failure::Failure;
use log::RetryLog;
pub(crate) use progress::Progress;

/// Timeouts and backoff of store requests.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Time limit for all attempts of a request together. A failure after this time is not retried. An attempt that is
    /// in progress may finish. Of each attempt, at most `request_timeout` counts.
    pub total_timeout: Duration,
    /// Timeout of one attempt. A read times out if it receives nothing for this time. Every other request must complete
    /// in this time. Parts of uploads have more time if parts timed out before.
    pub request_timeout: Duration,
    /// Backoff after the first failure. It doubles with each further failure and has a jitter of 50 %.
    pub initial_backoff: Duration,
    /// Upper bound of the backoff before jitter.
    pub max_backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            total_timeout: Duration::from_secs(180),
            request_timeout: Duration::from_secs(60),
            initial_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(15),
        }
    }
}

impl RetryPolicy {
    /// Backoff after failure number `failures` (from 1). It doubles with each failure. A random factor from 0.5 to 1.5
    /// prevents many throttled ranks from retrying at the same time.
    fn backoff(&self, failures: u32) -> Duration {
        let doubled = self.initial_backoff.saturating_mul(1 << (failures - 1).min(20));
        let spread = 0.5 + (RandomState::new().hash_one(failures) >> 11) as f64 / (1u64 << 53) as f64;
        doubled.min(self.max_backoff).mul_f64(spread)
    }
}

/// Operation and URL of a request, for messages.
#[derive(Debug, Clone)]
pub(crate) struct StoreRequest {
    pub operation: &'static str,
    pub url: String,
}

/// Content of a request. It determines the time limit of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Transfer {
    /// No large content. The attempt must complete within the request timeout.
    Small,
    /// Lookup of the size of an object, with the time limit of [`Transfer::Small`]. Datasets have thousands of them.
    Lookup,
    /// A response of about this number of bytes. The attempt fails if nothing arrives for the request timeout.
    Download(u64),
    /// A request of this number of bytes. The progress of an upload is invisible, so its time limit grows with its size
    /// and after timeouts.
    Upload(u64),
}

/// Size from which a request is large, bytes. Smaller writes, and reads of unknown size, never wait for a slot: leases and
/// manifests are such requests.
const LARGE: u64 = 256 << 10;

/// Largest upload that has the request timeout, bytes. The limit of a larger one is proportional to its size.
const LARGEST_USUAL_UPLOAD: u64 = 16 << 20;

impl Transfer {
    /// Slots of which the transfer needs one, if any.
    fn slots(self) -> Option<&'static TransferSlots> {
        match self {
            Self::Download(LARGE..) | Self::Upload(LARGE..) => Some(TransferSlots::large_requests()),
            Self::Lookup | Self::Download(1..) => Some(TransferSlots::small_reads()),
            Self::Small | Self::Download(0) | Self::Upload(_) => None,
        }
    }

    /// Waits for a slot if the transfer needs one.
    async fn slot(self) -> Option<Slot<'static>> {
        match self.slots() {
            Some(slots) => Some(slots.acquire().await),
            None => None,
        }
    }

    /// Time limit of an attempt.
    fn limit(self, retry_policy: &RetryPolicy) -> Duration {
        let limit = retry_policy.request_timeout;
        match self {
            Self::Upload(bytes) if bytes >= LARGE => {
                let prolonged = TransferSlots::large_requests().prolonged(limit);
                prolonged.mul_f64((bytes as f64 / LARGEST_USUAL_UPLOAD as f64).max(1.0))
            }
            _ => limit,
        }
    }
}

/// Calls `once` with the attempt number (from 1) until it succeeds, fails permanently, or the total timeout expires.
///
/// `retry_policy` is `None` for local disks and memory, where retries are pointless.
pub(crate) async fn attempts<T, F, Fut>(
    request: &StoreRequest,
    retry_policy: Option<&RetryPolicy>,
    mut once: F,
) -> Result<T>
where
    F: FnMut(u32) -> Fut,
    Fut: Future<Output = object_store::Result<T>>,
{
    transfer(request, retry_policy, Transfer::Small, |attempt, _| once(attempt)).await
}

/// Like [`attempts`], for a request with content. A download must report the bytes that it receives.
pub(crate) async fn transfer<T, F, Fut>(
    request: &StoreRequest,
    retry_policy: Option<&RetryPolicy>,
    transfer: Transfer,
    mut once: F,
) -> Result<T>
where
    F: FnMut(u32, Progress) -> Fut,
    Fut: Future<Output = object_store::Result<T>>,
{
    let start = Instant::now();
    let mut counted = Duration::ZERO;
    let mut attempt = 1;
    loop {
        let slot = if retry_policy.is_some() { transfer.slot().await } else { None };
        let (progress, begin) = (Progress::new(), Instant::now());
        let tried = limited(retry_policy, transfer, &progress, slot, once(attempt, progress.clone())).await;
        let failure = match tried {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let retry = retry_policy.filter(|retry_policy| {
            counted += begin.elapsed().min(retry_policy.request_timeout);
            failure.retry.allows(attempt) && counted < retry_policy.total_timeout
        });
        let Some(retry_policy) = retry else { return Err(failure.into_error(request, attempt, start.elapsed())) };
        let pause = retry_policy.backoff(attempt);
        let (operation, url, cause, seconds) = (request.operation, &request.url, &failure.cause, pause.as_secs_f32());
        if RetryLog::of_process().is_shown(format_args!("{operation} {url}: {cause}")) {
            tracing::warn!(operation, %url, attempt, "retrying in {seconds:.1} s: {cause}");
        } else {
            tracing::debug!(operation, %url, attempt, "retrying in {seconds:.1} s: {cause}");
        }
        tokio::time::sleep(pause).await;
        counted += pause;
        attempt += 1;
    }
}

/// Error of a local operation that does not use a storage backend.
pub(crate) fn local_error(request: &StoreRequest, error: &std::io::Error) -> Error {
    Failure::local_io(error).into_error(request, 1, Duration::ZERO)
}

/// Makes one attempt within its time limit. Reports its result to the slot, which is free afterwards.
async fn limited<T>(
    retry_policy: Option<&RetryPolicy>,
    transfer: Transfer,
    progress: &Progress,
    slot: Option<Slot<'static>>,
    once: impl Future<Output = object_store::Result<T>>,
) -> Result<T, Failure> {
    let Some(retry_policy) = retry_policy else { return once.await.map_err(|error| Failure::local(&error)) };
    let (limit, begin) = (transfer.limit(retry_policy), Instant::now());
    let waited = match transfer {
        Transfer::Download(_) => progress.limited(limit, once).await,
        Transfer::Small | Transfer::Lookup | Transfer::Upload(_) => tokio::time::timeout(limit, once).await.ok(),
    };
    let seconds = limit.as_secs_f32();
    let result = match (waited, transfer) {
        (Some(done), _) => done.map_err(|error| Failure::remote(&error)),
        (None, Transfer::Download(_)) => Err(Failure::timeout(format_args!("no data received within {seconds} s"))),
        (None, _) => Err(Failure::timeout(format_args!("no complete response within {seconds} s"))),
    };
    if let Some(slot) = slot {
        match &result {
            Ok(_) => slot.completed(begin.elapsed(), limit),
            Err(failure) if failure.is_overload => slot.overloaded(),
            Err(_) => {}
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_maximum_with_jitter() {
        let retry_policy = RetryPolicy::default();
        for failures in 1..40 {
            let middle = (0.1 * 2f64.powi(failures - 1)).min(15.0);
            let pause = retry_policy.backoff(failures as u32).as_secs_f64();
            assert!((middle * 0.5..middle * 1.5).contains(&pause), "{failures}: {pause}");
        }
    }

    /// Fails two attempts of `content` as a throttling store does, then succeeds.
    async fn throttled_twice(content: Transfer) {
        let pause = Duration::from_millis(1);
        let retry_policy = RetryPolicy { initial_backoff: pause, max_backoff: pause, ..RetryPolicy::default() };
        let request = StoreRequest { operation: "get", url: "s3://bucket/x".into() };
        let once = |attempt, _| async move {
            match attempt {
                1 | 2 => {
                    let source = "Server returned non-2xx status code: 503 Slow Down: ".into();
                    Err(object_store::Error::Generic { store: "S3", source })
                }
                _ => Ok(()),
            }
        };
        transfer(&request, Some(&retry_policy), content, once).await.unwrap();
    }

    #[test]
    fn throttling_reduces_the_slots_and_control_requests_need_none() {
        let [large, small] = [TransferSlots::large_requests(), TransferSlots::small_reads()];
        assert_eq!((large.size(), small.size()), (32, 32));
        crate::runtime::wait(async move {
            throttled_twice(Transfer::Lookup).await;
            // The third attempt succeeds and adds a slot.
            assert_eq!((large.size(), small.size()), (32, 9));
            throttled_twice(Transfer::Download(LARGE - 1)).await;
            throttled_twice(Transfer::Upload(LARGE)).await;
            assert_eq!((large.size(), small.size()), (9, 4));
            let mut used = Vec::new();
            for _ in 0..9 {
                used.push(large.acquire().await);
            }
            throttled_twice(Transfer::Download(LARGE - 1)).await;
            assert_eq!(small.size(), 2);
            for _ in 0..2 {
                used.push(small.acquire().await);
            }
            for control in [Transfer::Small, Transfer::Download(0), Transfer::Upload(LARGE - 1)] {
                throttled_twice(control).await;
            }
        });
    }

    #[test]
    fn the_total_timeout_ends_retries_and_the_error_counts_attempts() {
        let pause = Duration::from_millis(10);
        let total = Duration::from_millis(100);
        let retry_policy =
            RetryPolicy { total_timeout: total, request_timeout: total, initial_backoff: pause, max_backoff: pause };
        let request = StoreRequest { operation: "get", url: "s3://bucket/x".into() };
        let failed = crate::runtime::wait(async move {
            attempts(&request, Some(&retry_policy), |_| async {
                Err::<(), _>(object_store::Error::Generic { store: "S3", source: "reset".into() })
            })
            .await
        });
        let Err(Error::Failed { attempts, seconds, .. }) = failed else { panic!("{failed:?}") };
        assert!(attempts > 4 && (0.1..2.0).contains(&seconds), "{attempts} attempts in {seconds} s");
    }
}
