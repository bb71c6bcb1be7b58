//! Store errors. Every message names the operation and the URL and contains no credential.

use std::fmt;
use std::sync::{PoisonError, RwLock};

/// A failed store operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL has an unsupported scheme, or contains a password or a query.
    #[error("cannot open {url}: {why}")]
    Url {
        /// The URL without secrets.
        url: String,
        /// The problem and the expected form.
        why: String,
    },
    /// An object name that could escape the store, or that no store accepts.
    #[error("{name:?} is not an object name: {why}")]
    Name {
        /// The rejected name.
        name: String,
        /// The broken rule.
        why: &'static str,
    },
    /// No such object, bucket or folder.
    #[error("{operation} {url}: no such object")]
    NotFound {
        /// Operation.
        operation: &'static str,
        /// URL of the object.
        url: String,
    },
    /// No committed checkpoint of this name.
    #[error("no checkpoint {name} in {run}; `lambert checkpoint list {run}` lists them")]
    NoCheckpoint {
        /// URL of the run.
        run: String,
        /// Name of the checkpoint.
        name: String,
    },
    /// Access denied: no permission, no credential, or an expired credential.
    #[error("{operation} {url}: access denied (check {})", access_check(url))]
    Denied {
        /// Operation.
        operation: &'static str,
        /// URL of the object.
        url: String,
        /// Message of the store.
        #[source]
        source: Cause,
    },
    /// A permanent failure, or a transient one that outlasted the retries.
    #[error("{operation} {url} failed after {attempts} {} in {seconds:.1} s", if *attempts == 1 { "try" } else { "tries" })]
    Failed {
        /// Operation.
        operation: &'static str,
        /// URL of the object.
        url: String,
        /// Number of tries.
        attempts: u32,
        /// Total time of all tries, seconds.
        seconds: f64,
        /// The last failure.
        #[source]
        source: Cause,
    },
    /// An object differs from what its writer recorded: truncated, corrupted or replaced.
    #[error("{url} is damaged: {what}: expected {expected}, found {found}")]
    Damaged {
        /// URL of the object.
        url: String,
        /// The property that differs: size, sha256, format...
        what: &'static str,
        /// The recorded value.
        expected: String,
        /// The value found.
        found: String,
    },
    /// An object exceeds the size limit of the reader.
    #[error("{url} has {bytes} bytes, more than the limit of {limit}")]
    TooLarge {
        /// URL of the object.
        url: String,
        /// Its size in bytes.
        bytes: u64,
        /// Size limit of the reader, in bytes.
        limit: u64,
    },
    /// A tensor that is being written has a NaN or infinite element. Readers would reject this tensor.
    #[error("{url}: element {element} of tensor {tensor} is not finite")]
    NotFinite {
        /// URL of the object.
        url: String,
        /// Name of the tensor in the object.
        tensor: String,
        /// The first such element, as an index into the flattened tensor.
        element: u64,
    },
    /// A run has too few checkpoints.
    #[error("{url} has {found} usable checkpoints, expected {expected}")]
    TooFew {
        /// URL of the run.
        url: String,
        /// Number that the caller needs.
        expected: usize,
        /// Number of checkpoints that no rollback has undone.
        found: usize,
    },
    /// Checkpoints whose tensors differ, so that their weights have no mean.
    #[error("the tensors of {url} differ from those of {first}; only checkpoints of the same model can be averaged")]
    OtherModel {
        /// URL of the weights.
        url: String,
        /// Checkpoint with the other tensors.
        first: String,
    },
    /// A checkpoint of this name is already committed.
    #[error("{url} already exists; checkpoints are never overwritten")]
    Exists {
        /// URL of the object.
        url: String,
    },
    /// A manifest that is inconsistent or belongs to another checkpoint.
    #[error("{url} cannot be committed: {why}")]
    Refused {
        /// URL of the checkpoint.
        url: String,
        /// The inconsistency.
        why: String,
    },
    /// The store ignores create-only conditions, so two coordinators could hold the same lease.
    #[error(
        "{url} was replaced by a create-only write: this store ignores If-None-Match, which leases and \
         commits require; use another store"
    )]
    NotCreateOnly {
        /// URL of the object.
        url: String,
    },
    /// The store rejects create-only conditions.
    #[error(
        "create {url}: this store does not implement If-None-Match, which leases and commits require; use another \
         store"
    )]
    NoCreateOnly {
        /// URL of the object.
        url: String,
        /// Message of the store.
        #[source]
        source: Cause,
    },
    /// The attempt number in the name of an object is too high, so that no attempt can follow.
    #[error(
        "{url} has attempt number {attempt}, above the maximum of {last}, so no lease can follow it; delete or move it, then \
         restart the run",
        last = crate::run::LAST_ATTEMPT
    )]
    LastAttempt {
        /// URL of the object.
        url: String,
        /// Attempt number in its name.
        attempt: u32,
    },
    /// The folder of the store was moved or removed.
    #[error(
        "{operation} {url}: folder {folder} no longer exists (moved, removed or not mounted) and is \
         not recreated"
    )]
    FolderGone {
        /// Operation.
        operation: &'static str,
        /// URL of the object.
        url: String,
        /// The missing folder.
        folder: String,
    },
    /// The lease object is missing or was replaced. This attempt may no longer write to the run.
    #[error(
        "attempt {attempt} has lost the lease of {url}: {object} is missing or was replaced; the run was moved, \
         removed or replaced during training",
        object = crate::run::lease(*attempt)
    )]
    LeaseGone {
        /// URL of the run.
        url: String,
        /// The attempt that lost the lease.
        attempt: u32,
    },
    /// A newer attempt holds the lease. This attempt may no longer write to the run.
    #[error("attempt {attempt} has lost the lease of {url}: attempt {newest} holds it")]
    LeaseLost {
        /// URL of the run.
        url: String,
        /// The attempt that lost the lease.
        attempt: u32,
        /// The attempt that holds the lease.
        newest: u32,
    },
}

/// Result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// True if the object or the checkpoint does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::NoCheckpoint { .. })
    }

    /// True if no checkpoint of the requested name is committed.
    pub fn is_no_checkpoint(&self) -> bool {
        matches!(self, Self::NoCheckpoint { .. })
    }

    /// True if the attempt may no longer write to the run.
    pub fn is_lease_lost(&self) -> bool {
        matches!(self, Self::LeaseLost { .. } | Self::LeaseGone { .. })
    }

    /// True if the object exists but differs from the record of its writer, or is too large.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::TooLarge { .. })
    }
}

/// Returns what to check if access to `url` is denied.
fn access_check(url: &str) -> &'static str {
    match url.contains("://") && !url.starts_with("file://") {
        true => "that the credentials in the environment are present, valid and permit this",
        false => "the permissions of the folder, and that its file system is not mounted read-only",
    }
}

/// Message of a lower layer, with secrets from the environment and from the AWS credentials file redacted.
///
/// Lower layers quote requests and responses, which can contain secrets. The message is stored as text, because only
/// text can be searched for secrets.
#[derive(Debug, Clone)]
pub struct Cause(String);

impl Cause {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        // If the value of a variable is not UTF-8, a message can contain only its lossy conversion. Therefore this code
        // converts the values in the same way.
        let variables = std::env::vars_os();
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let variables = variables.map(|(name, value)| (text(name), text(value)));
        let of_files = SECRETS_OF_FILES.read().unwrap_or_else(PoisonError::into_inner).clone();
        Self(redact_secrets(message.to_string(), variables.chain(of_files)))
    }

    /// The errno, if the message ends with `(os error N)`.
    pub fn os_error(&self) -> Option<i32> {
        let (_, rest) = self.0.rsplit_once("(os error ")?;
        rest.split_once(')')?.0.parse().ok()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}

/// An environment variable is taken for a secret if its name contains one of these words.
const SECRET_NAMES: [&str; 8] =
    ["SECRET", "TOKEN", "PASSWORD", "ACCESS_KEY", "ACCOUNT_KEY", "STORAGE_KEY", "MASTER_KEY", "SAS"];
/// Minimum length of a secret, bytes. Shorter values are taken for ordinary words.
const MIN_SECRET_BYTES: usize = 8;

/// Names and values of settings that were read from files.
static SECRETS_OF_FILES: RwLock<Vec<(String, String)>> = RwLock::new(Vec::new());

/// Redacts the value of a setting in later messages, if its name is that of a secret.
pub(crate) fn redact_setting(name: &str, value: &str) {
    let setting = (name.to_uppercase(), value.to_string());
    let mut known = SECRETS_OF_FILES.write().unwrap_or_else(PoisonError::into_inner);
    if !known.contains(&setting) {
        known.push(setting);
    }
}

fn redact_secrets(mut message: String, variables: impl Iterator<Item = (String, String)>) -> String {
    for (name, value) in variables {
        let secret = SECRET_NAMES.iter().any(|part| name.contains(part)) && value.len() >= MIN_SECRET_BYTES;
        if secret && message.contains(&value) {
            message = message.replace(&value, &format!("[{name}]"));
        }
    }
    message
}

/// Formats an error and its sources on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_store_has_credentials() {
        let shown = |url: &str| {
            let denied = Error::Denied { operation: "put", url: url.into(), source: Cause::new("no") };
            denied.to_string()
        };
        assert!(shown("s3://bucket/run/x").contains("credentials"));
        for url in ["/srv/run/x", "run/x", "file:///srv/run/x"] {
            let text = shown(url);
            assert!(!text.contains("credentials") && text.contains("permissions of the folder"), "{text}");
        }
    }

    #[test]
    fn secrets_of_the_environment_are_redacted() {
        let variables = [
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI"),
            ("AWS_REGION", "eu-west-1"),
            ("SAS", "short"),
            ("AZURE_STORAGE_KEY", "a2V5LW9mLWF6"),
            ("AZURE_STORAGE_MASTER_KEY", "bWFzdGVyLWtl"),
        ];
        let variables = variables.map(|(name, value)| (name.to_string(), value.to_string()));
        let message = "PUT eu-west-1 short wJalrXUtnFEMI a2V5LW9mLWF6 bWFzdGVyLWtl";
        let shown = redact_secrets(message.into(), variables.into_iter());
        let expected = "PUT eu-west-1 short [AWS_SECRET_ACCESS_KEY] [AZURE_STORAGE_KEY] [AZURE_STORAGE_MASTER_KEY]";
        assert_eq!(shown, expected);
    }

    #[test]
    fn secrets_of_files_are_redacted() {
        redact_setting("aws_secret_access_key", "c2VjcmV0LW9mLWEtZmlsZQ");
        redact_setting("region", "mars-west-1");
        let shown = Cause::new("PUT mars-west-1 c2VjcmV0LW9mLWEtZmlsZQ").to_string();
        assert_eq!(shown, "PUT mars-west-1 [AWS_SECRET_ACCESS_KEY]");
    }
}
