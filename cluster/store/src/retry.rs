//! When to try again, for how long, and what a failure means.
//!
//! object_store's own retries are switched off and this one loop stands in their place: it knows about lost
//! success answers of create-only writes, resumes nothing half-read, and says in the log what it does.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::error::{Cause, Error, Result};

/// How long to wait for a store before giving up.
#[derive(Debug, Clone, PartialEq)]
pub struct Patience {
    /// All attempts of one request together. A request that has begun within this time is let finish.
    pub total: Duration,
    /// One attempt, from sending to the last byte of the answer.
    pub request: Duration,
    /// The pause after the first failure; it doubles with each further one, give or take a half at random.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            total: Duration::from_secs(180),
            request: Duration::from_secs(60),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(15),
        }
    }
}

impl Patience {
    /// The pause after failure number `failures` (from 1): doubled each time, spread over 50 to 150 percent so
    /// that a thousand ranks turned away together do not come back together.
    fn pause(&self, failures: u32) -> Duration {
        let doubled = self.first_pause.saturating_mul(1 << (failures - 1).min(20));
        let spread = 0.5 + (RandomState::new().hash_one(failures) >> 11) as f64 / (1u64 << 53) as f64;
        doubled.min(self.longest_pause).mul_f64(spread)
    }
}

/// What a request is about: for messages.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub operation: &'static str,
    pub url: String,
}

/// Runs `once(attempt)` (from 1) until it succeeds, fails for good, or patience ends.
///
/// `patience` is `None` for stores where trying again is pointless (this machine's disk and memory).
pub(crate) async fn attempts<T, F, Fut>(place: &Place, patience: Option<&Patience>, mut once: F) -> Result<T>
where
    F: FnMut(u32) -> Fut,
    Fut: Future<Output = object_store::Result<T>>,
{
    let start = Instant::now();
    let mut attempt = 1;
    loop {
        let failure = match limited(patience, once(attempt)).await {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let again = patience.filter(|patience| failure.again.is_worth(attempt) && start.elapsed() < patience.total);
        let Some(patience) = again else { return Err(failure.into_error(place, attempt, start.elapsed())) };
        let pause = patience.pause(attempt);
        let (operation, url, cause, seconds) = (place.operation, &place.url, &failure.cause, pause.as_secs_f32());
        tracing::warn!(operation, %url, attempt, "trying again in {seconds:.1} s: {cause}");
        tokio::time::sleep(pause).await;
        attempt += 1;
    }
}

async fn limited<T>(
    patience: Option<&Patience>,
    once: impl Future<Output = object_store::Result<T>>,
) -> Result<T, Failure> {
    let Some(patience) = patience else { return once.await.map_err(|error| Failure::local(&error)) };
    match tokio::time::timeout(patience.request, once).await {
        Ok(done) => done.map_err(|error| Failure::remote(&error)),
        Err(_) => Err(Failure {
            meaning: Meaning::Other,
            again: Again::Patiently,
            cause: Cause::new(format_args!("no complete answer within {} s", patience.request.as_secs_f32())),
        }),
    }
}

/// What a failed request means for the caller.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Meaning {
    NotFound,
    Denied,
    Other,
}

/// Whether the next attempt may fare better.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Again {
    Never,
    /// A few times: it may be a hiccup, but most likely it is not.
    Briefly,
    /// As long as patience lasts.
    Patiently,
}

impl Again {
    fn is_worth(self, attempts: u32) -> bool {
        match self {
            Self::Never => false,
            Self::Briefly => attempts < 3,
            Self::Patiently => true,
        }
    }
}

/// A failed attempt.
struct Failure {
    meaning: Meaning,
    again: Again,
    cause: Cause,
}

impl Failure {
    fn local(error: &object_store::Error) -> Self {
        use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
        let meaning = match (error, io_kind(error)) {
            (object_store::Error::NotFound { .. }, _) | (_, Some(NotFound | NotADirectory)) => Meaning::NotFound,
            (_, Some(PermissionDenied | ReadOnlyFilesystem)) => Meaning::Denied,
            _ => Meaning::Other,
        };
        Self { meaning, again: Again::Never, cause: Cause::new(chain(error)) }
    }

    fn remote(error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let text = chain(error);
        let (meaning, again) = match error {
            E::NotFound { .. } => (Meaning::NotFound, Again::Never),
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => (Meaning::Denied, Again::Never),
            E::Generic { .. } => from_text(&text),
            _ => (Meaning::Other, Again::Never),
        };
        Self { meaning, again, cause: Cause::new(text) }
    }

    fn into_error(self, place: &Place, attempts: u32, elapsed: Duration) -> Error {
        let (operation, url, source) = (place.operation, place.url.clone(), self.cause);
        match self.meaning {
            Meaning::NotFound => Error::NotFound { operation, url },
            Meaning::Denied => Error::Denied { operation, url, source },
            Meaning::Other => Error::Failed { operation, url, attempts, seconds: elapsed.as_secs_f64(), source },
        }
    }
}

/// object_store keeps the HTTP status of a failed request in a private type, but writes it into the message.
fn from_text(text: &str) -> (Meaning, Again) {
    if text.contains("ExpiredToken") || text.contains("InvalidAccessKeyId") || text.contains("TokenRefreshRequired") {
        return (Meaning::Denied, Again::Never);
    }
    if METADATA_SERVICES.iter().any(|host| text.contains(host)) {
        return (Meaning::Denied, Again::Briefly);
    }
    let status = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse::<u16>().ok());
    let permanent = match status {
        Some(408 | 425 | 429) => false,
        Some(status) => (300..500).contains(&status),
        None => ["redirect", "scheme is not allowed", "Wanted range"].iter().any(|part| text.contains(part)),
    };
    (Meaning::Other, if permanent { Again::Never } else { Again::Patiently })
}

/// Where a provider's machines ask for their own credentials. Elsewhere nobody answers there, which means that no
/// other credential was found.
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

/// The messages of `error` and its sources, without those a message above already quotes.
fn chain(error: &dyn std::error::Error) -> String {
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
    fn server_trouble_is_tried_again_and_refusals_are_not() {
        let transient = |text: &str| Failure::remote(&generic(text)).again == Again::Patiently;
        for status in ["500 Internal Server Error", "503 Slow Down", "429 Too Many Requests", "408 Request Timeout"] {
            assert!(transient(&format!("Server returned non-2xx status code: {status}: ")), "{status}");
        }
        assert!(transient("HTTP error: connection reset by peer"));
        assert!(!transient("Server returned non-2xx status code: 400 Bad Request: MalformedXML"));
        assert!(!transient("Received redirect without LOCATION"));
        let expired = generic("Server returned non-2xx status code: 400 Bad Request: <Code>ExpiredToken</Code>");
        assert_eq!(Failure::remote(&expired).meaning, Meaning::Denied);
        let nobody = Failure::remote(&generic("error sending request for http://169.254.169.254/latest/api/token"));
        assert!(nobody.meaning == Meaning::Denied && !nobody.again.is_worth(3));
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_are_spread() {
        let patience = Patience::default();
        for failures in 1..40 {
            let middle = (0.1 * 2f64.powi(failures - 1)).min(15.0);
            let pause = patience.pause(failures as u32).as_secs_f64();
            assert!((middle * 0.5..middle * 1.5).contains(&pause), "{failures}: {pause}");
        }
    }

    #[test]
    fn gives_up_when_patience_ends_and_says_how_often_it_tried() {
        let pause = Duration::from_millis(10);
        let total = Duration::from_millis(100);
        let patience = Patience { total, request: total, first_pause: pause, longest_pause: pause };
        let place = Place { operation: "get", url: "s3://bucket/x".into() };
        let failed = crate::runtime::wait(async move {
            attempts(&place, Some(&patience), |_| async { Err::<(), _>(generic("reset")) }).await
        });
        let Err(Error::Failed { attempts, seconds, .. }) = failed else { panic!("{failed:?}") };
        assert!(attempts > 4 && (0.1..2.0).contains(&seconds), "{attempts} attempts in {seconds} s");
    }
}
