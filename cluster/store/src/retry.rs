//! Retries with exponential backoff, and classification of errors.
//!
//! Replaces the retries of object_store. This loop handles create-only writes that succeeded although the response was
//! lost. It never resumes a partial read, and it logs every retry.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::error::{Cause, Error, Result};

/// Timeouts and backoff of store requests.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Time limit for all attempts of a request together. A failure after this time is not retried. An attempt that is
    /// in progress may finish.
    pub total_timeout: Duration,
    /// Timeout of one attempt, from sending to the last byte of the response.
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
    let start = Instant::now();
    let mut attempt = 1;
    loop {
        let failure = match limited(retry_policy, once(attempt)).await {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let retry = retry_policy
            .filter(|retry_policy| failure.retry.allows(attempt) && start.elapsed() < retry_policy.total_timeout);
        let Some(retry_policy) = retry else { return Err(failure.into_error(request, attempt, start.elapsed())) };
        let pause = retry_policy.backoff(attempt);
        let (operation, url, cause, seconds) = (request.operation, &request.url, &failure.cause, pause.as_secs_f32());
        tracing::warn!(operation, %url, attempt, "retrying in {seconds:.1} s: {cause}");
        tokio::time::sleep(pause).await;
        attempt += 1;
    }
}

async fn limited<T>(
    retry_policy: Option<&RetryPolicy>,
    once: impl Future<Output = object_store::Result<T>>,
) -> Result<T, Failure> {
    let Some(retry_policy) = retry_policy else { return once.await.map_err(|error| Failure::local(&error)) };
    match tokio::time::timeout(retry_policy.request_timeout, once).await {
        Ok(done) => done.map_err(|error| Failure::remote(&error)),
        Err(_) => Err(Failure {
            class: ErrorClass::Other,
            retry: Retry::UntilTimeout,
            cause: Cause::new(format_args!(
                "no complete response within {} s",
                retry_policy.request_timeout.as_secs_f32()
            )),
        }),
    }
}

/// Error class of a failed request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ErrorClass {
    NotFound,
    Denied,
    Other,
}

/// Retry decision after a failure.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Retry {
    Never,
    /// At most three attempts, because the failure is probably permanent.
    Limited,
    /// Until the total timeout.
    UntilTimeout,
}

impl Retry {
    fn allows(self, attempts: u32) -> bool {
        match self {
            Self::Never => false,
            Self::Limited => attempts < 3,
            Self::UntilTimeout => true,
        }
    }
}

/// A failed attempt.
struct Failure {
    class: ErrorClass,
    retry: Retry,
    cause: Cause,
}

impl Failure {
    fn local(error: &object_store::Error) -> Self {
        use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
        let class = match (error, io_kind(error)) {
            (object_store::Error::NotFound { .. }, _) | (_, Some(NotFound | NotADirectory)) => ErrorClass::NotFound,
            (_, Some(PermissionDenied | ReadOnlyFilesystem)) => ErrorClass::Denied,
            _ => ErrorClass::Other,
        };
        Self { class, retry: Retry::Never, cause: Cause::new(chain_without_repeats(error)) }
    }

    fn remote(error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let text = chain_without_repeats(error);
        let (class, retry) = match error {
            E::NotFound { .. } => (ErrorClass::NotFound, Retry::Never),
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => (ErrorClass::Denied, Retry::Never),
            E::Generic { .. } => from_text(&text),
            _ => (ErrorClass::Other, Retry::Never),
        };
        Self { class, retry, cause: Cause::new(text) }
    }

    fn into_error(self, request: &StoreRequest, attempts: u32, elapsed: Duration) -> Error {
        let (operation, url, source) = (request.operation, request.url.clone(), self.cause);
        // A local write needs no object: a file is in the place of a folder. A write to an object store needs a bucket.
        let is_local_write = matches!(operation, "put" | "create") && !url.contains("://");
        match self.class {
            ErrorClass::NotFound if !is_local_write => Error::NotFound { operation, url },
            ErrorClass::Denied => Error::Denied { operation, url, source },
            ErrorClass::Other | ErrorClass::NotFound => {
                Error::Failed { operation, url, attempts, seconds: elapsed.as_secs_f64(), source }
            }
        }
    }
}

/// Classifies an error by its message. object_store keeps the HTTP status in a private type, but the message contains
/// it.
fn from_text(text: &str) -> (ErrorClass, Retry) {
    if text.contains("ExpiredToken") || text.contains("InvalidAccessKeyId") || text.contains("TokenRefreshRequired") {
        return (ErrorClass::Denied, Retry::Never);
    }
    if METADATA_SERVICES.iter().any(|host| text.contains(host)) {
        return (ErrorClass::Denied, Retry::Limited);
    }
    let status = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse::<u16>().ok());
    let permanent = match status {
        Some(408 | 425 | 429) => false,
        Some(status) => (300..500).contains(&status),
        None => ["redirect", "scheme is not allowed", "Wanted range"].iter().any(|part| text.contains(part)),
    };
    (ErrorClass::Other, if permanent { Retry::Never } else { Retry::UntilTimeout })
}

/// Hosts of the instance metadata services. object_store queries them if it finds no other credential. On machines
/// outside the cloud these hosts do not answer.
const METADATA_SERVICES: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];

fn io_kind(error: &object_store::Error) -> Option<std::io::ErrorKind> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}

/// Joins the messages of `error` and its sources. Skips a message that the text already contains.
fn chain_without_repeats(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let message = source.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.into() }
    }

    #[test]
    fn server_errors_are_retried_and_client_errors_are_not() {
        let transient = |text: &str| Failure::remote(&generic(text)).retry == Retry::UntilTimeout;
        for status in ["500 Internal Server Error", "503 Slow Down", "429 Too Many Requests", "408 Request Timeout"] {
            assert!(transient(&format!("Server returned non-2xx status code: {status}: ")), "{status}");
        }
        assert!(transient("HTTP error: connection reset by peer"));
        assert!(!transient("Server returned non-2xx status code: 400 Bad StoreRequest: MalformedXML"));
        assert!(!transient("Received redirect without LOCATION"));
        let expired = generic("Server returned non-2xx status code: 400 Bad StoreRequest: <Code>ExpiredToken</Code>");
        assert_eq!(Failure::remote(&expired).class, ErrorClass::Denied);
        let nobody = Failure::remote(&generic("error sending request for http://169.254.169.254/latest/api/token"));
        assert!(nobody.class == ErrorClass::Denied && !nobody.retry.allows(3));
    }

    #[test]
    fn backoff_doubles_up_to_its_maximum_with_jitter() {
        let retry_policy = RetryPolicy::default();
        for failures in 1..40 {
            let middle = (0.1 * 2f64.powi(failures - 1)).min(15.0);
            let pause = retry_policy.backoff(failures as u32).as_secs_f64();
            assert!((middle * 0.5..middle * 1.5).contains(&pause), "{failures}: {pause}");
        }
    }

    #[test]
    fn the_total_timeout_ends_retries_and_the_error_counts_attempts() {
        let pause = Duration::from_millis(10);
        let total = Duration::from_millis(100);
        let retry_policy =
            RetryPolicy { total_timeout: total, request_timeout: total, initial_backoff: pause, max_backoff: pause };
        let request = StoreRequest { operation: "get", url: "s3://bucket/x".into() };
        let failed = crate::runtime::wait(async move {
            attempts(&request, Some(&retry_policy), |_| async { Err::<(), _>(generic("reset")) }).await
        });
        let Err(Error::Failed { attempts, seconds, .. }) = failed else { panic!("{failed:?}") };
        assert!(attempts > 4 && (0.1..2.0).contains(&seconds), "{attempts} attempts in {seconds} s");
    }
}
