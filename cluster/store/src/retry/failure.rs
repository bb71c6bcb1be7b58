//! Classification of failed requests.

use std::time::Duration;

use super::StoreRequest;
use crate::error::{Cause, Error};

/// Error class of a failed request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ErrorClass {
    NotFound,
    Denied,
    /// The store does not implement the request.
    Unsupported,
    Other,
}

/// Retry decision after a failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Retry {
    Never,
    /// At most three attempts, because the failure is probably permanent.
    Limited,
    /// Until the total timeout.
    UntilTimeout,
}

impl Retry {
    pub(super) fn allows(self, attempts: u32) -> bool {
        match self {
            Self::Never => false,
            Self::Limited => attempts < 3,
            Self::UntilTimeout => true,
        }
    }
}

/// A failed attempt.
pub(super) struct Failure {
    class: ErrorClass,
    pub retry: Retry,
    pub cause: Cause,
    /// True if fewer concurrent requests would help: the attempt made no progress for too long, or the store throttles.
    pub is_overload: bool,
}

impl Failure {
    /// Failure of an attempt that was ended because it made no progress.
    pub(super) fn timeout(cause: std::fmt::Arguments<'_>) -> Self {
        Self { class: ErrorClass::Other, retry: Retry::UntilTimeout, cause: Cause::new(cause), is_overload: true }
    }

    pub(super) fn local(error: &object_store::Error) -> Self {
        let class = match error {
            object_store::Error::NotFound { .. } => ErrorClass::NotFound,
            error => io_kind(error).map_or(ErrorClass::Other, class_of),
        };
        Self { class, retry: Retry::Never, cause: Cause::new(chain_without_repeats(error)), is_overload: false }
    }

    pub(super) fn local_io(error: &std::io::Error) -> Self {
        Self { class: class_of(error.kind()), retry: Retry::Never, cause: Cause::new(error), is_overload: false }
    }

    pub(super) fn remote(error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let text = chain_without_repeats(error);
        let (class, retry) = match error {
            E::NotFound { .. } => (ErrorClass::NotFound, Retry::Never),
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => (ErrorClass::Denied, Retry::Never),
            E::NotImplemented { .. } => (ErrorClass::Unsupported, Retry::Never),
            E::Generic { .. } => from_text(&text),
            _ => (ErrorClass::Other, Retry::Never),
        };
        let is_throttled = matches!(status(&text), Some(429 | 503)) || text.contains(THROTTLING_CODE);
        let is_overload = is_throttled || text.contains(TIMEOUT_CODE);
        Self { class, retry, cause: Cause::new(text), is_overload }
    }

    pub(super) fn into_error(self, request: &StoreRequest, attempts: u32, elapsed: Duration) -> Error {
        let (operation, url, source) = (request.operation, request.url.clone(), self.cause);
        // A local write needs no object: a file is in the place of a folder. A write to an object store needs a bucket.
        let is_local_write = matches!(operation, "put" | "create") && !url.contains("://");
        match self.class {
            ErrorClass::NotFound if !is_local_write => Error::NotFound { operation, url },
            ErrorClass::Denied => Error::Denied { operation, url, source },
            ErrorClass::Unsupported if operation == "create" => Error::NoCreateOnly { url, source },
            ErrorClass::Other | ErrorClass::Unsupported | ErrorClass::NotFound => {
                Error::Failed { operation, url, attempts, seconds: elapsed.as_secs_f64(), source }
            }
        }
    }
}

/// Returns the HTTP status of a response. object_store keeps it in a private type, but the message contains it.
fn status(text: &str) -> Option<u16> {
    text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse().ok())
}

/// Classifies an error by its message.
fn from_text(text: &str) -> (ErrorClass, Retry) {
    if DENIED_CODES.iter().any(|code| text.contains(code)) {
        return (ErrorClass::Denied, Retry::Never);
    }
    if text.contains(TIMEOUT_CODE) {
        return (ErrorClass::Other, Retry::UntilTimeout);
    }
    if METADATA_SERVICES.iter().any(|host| text.contains(host)) {
        return (ErrorClass::Denied, Retry::Limited);
    }
    let status = status(text);
    if status == Some(501) {
        return (ErrorClass::Unsupported, Retry::Never);
    }
    // object_store has no error of its own for a list that is denied.
    if matches!(status, Some(401 | 403)) {
        return (ErrorClass::Denied, Retry::Never);
    }
    let permanent = match status {
        Some(408 | 425 | 429) => false,
        Some(status) => (300..500).contains(&status),
        None => ["redirect", "scheme is not allowed", "Wanted range"].iter().any(|part| text.contains(part)),
    };
    (ErrorClass::Other, if permanent { Retry::Never } else { Retry::UntilTimeout })
}

/// Error codes of responses without status 401 or 403. `code: AccessDenied` is that of a single key of a request that
/// deletes several objects.
const DENIED_CODES: [&str; 4] = ["ExpiredToken", "InvalidAccessKeyId", "TokenRefreshRequired", "code: AccessDenied"];

/// Error code of a store whose client sent too slowly. S3 returns it with status 400.
const TIMEOUT_CODE: &str = "<Code>RequestTimeout</Code>";

/// Error code of a store that throttles a single key of a request that deletes several objects.
const THROTTLING_CODE: &str = "code: SlowDown";

/// Hosts of the instance metadata services. object_store queries them if it finds no other credential. On machines
/// outside the cloud these hosts do not answer.
const METADATA_SERVICES: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];

/// Error class of a local operation.
fn class_of(kind: std::io::ErrorKind) -> ErrorClass {
    use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    match kind {
        NotFound | NotADirectory => ErrorClass::NotFound,
        PermissionDenied | ReadOnlyFilesystem => ErrorClass::Denied,
        _ => ErrorClass::Other,
    }
}

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
        assert!(transient("Server returned non-2xx status code: 400 Bad Request: <Code>RequestTimeout</Code>"));
        assert!(!transient("Server returned non-2xx status code: 400 Bad StoreRequest: MalformedXML"));
        assert!(!transient("Server returned non-2xx status code: 501 Not Implemented: "));
        assert!(!transient("DeleteObjects request failed for key x: Access Denied (code: AccessDenied)"));
        assert!(transient("DeleteObjects request failed for key x: try again (code: InternalError)"));
        assert!(!transient("Received redirect without LOCATION"));
        let expired = generic("Server returned non-2xx status code: 400 Bad StoreRequest: <Code>ExpiredToken</Code>");
        assert_eq!(Failure::remote(&expired).class, ErrorClass::Denied);
        let list = generic("Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied</Code>");
        assert_eq!(Failure::remote(&list).class, ErrorClass::Denied);
        let overload = |text: &str| Failure::remote(&generic(text)).is_overload;
        for answer in ["429 Too Many Requests", "503 Slow Down", "503 Service Unavailable: <Code>ServerBusy</Code>"] {
            assert!(overload(&format!("Server returned non-2xx status code: {answer}")), "{answer}");
        }
        assert!(overload("DeleteObjects request failed for key x: reduce your rate (code: SlowDown)"));
        assert!(!overload("Server returned non-2xx status code: 500 Internal Server Error: "));
        let nobody = Failure::remote(&generic("error sending request for http://169.254.169.254/latest/api/token"));
        assert!(nobody.class == ErrorClass::Denied && !nobody.retry.allows(3));
    }
}
