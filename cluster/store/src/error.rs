//! What can go wrong with a store. Every message names the operation and the URL; none holds a credential.

use std::fmt;

/// An operation on a store that did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL is of no kind this crate opens, or holds what a URL must not hold (a password, a query).
    #[error("cannot open {url}: {why}")]
    Url {
        /// The URL as far as it may be shown.
        url: String,
        /// What is wrong with it and what was expected.
        why: String,
    },
    /// An object name that could reach outside the store, or that no store takes.
    #[error("{name:?} is not an object name: {why}")]
    Name {
        /// The refused name.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// There is no such object (or bucket, or folder).
    #[error("{operation} {url}: there is no such object")]
    NotFound {
        /// What was tried.
        operation: &'static str,
        /// The object's URL.
        url: String,
    },
    /// The store refuses: no permission, no credential, or an expired one.
    #[error(
        "{operation} {url}: access denied (are the credentials in the environment present, current and allowed to do this?)"
    )]
    Denied {
        /// What was tried.
        operation: &'static str,
        /// The object's URL.
        url: String,
        /// The store's own words.
        #[source]
        source: Cause,
    },
    /// The operation failed and trying again would not help, or was tried until patience ran out.
    #[error("{operation} {url} failed after {attempts} attempt(s) in {seconds:.1} s")]
    Failed {
        /// What was tried.
        operation: &'static str,
        /// The object's URL.
        url: String,
        /// How often it was tried.
        attempts: u32,
        /// For how long it was tried, in seconds.
        seconds: f64,
        /// The last failure.
        #[source]
        source: Cause,
    },
    /// An object is not what its writer recorded: truncated, flipped, replaced.
    #[error("{url} is damaged: {what}: expected {expected}, found {found}")]
    Damaged {
        /// The object's URL.
        url: String,
        /// Which property differs: size, sha256, format...
        what: &'static str,
        /// The recorded value.
        expected: String,
        /// The value found.
        found: String,
    },
    /// An object is larger than what its reader is prepared to hold.
    #[error("{url} has {bytes} bytes, more than the {limit} accepted here")]
    TooLarge {
        /// The object's URL.
        url: String,
        /// Its size in bytes.
        bytes: u64,
        /// The reader's limit in bytes.
        limit: u64,
    },
    /// A tensor that is being written has a number that is infinite or none: what is read refuses it.
    #[error("{url}: element {element} of tensor {tensor} is not finite")]
    NotFinite {
        /// The object's URL.
        url: String,
        /// The tensor, as the object names it.
        tensor: String,
        /// The first such element, counted in the flattened tensor from 0.
        element: u64,
    },
    /// A checkpoint of this name is already committed.
    #[error("{url} exists already and is never replaced")]
    Exists {
        /// The object's URL.
        url: String,
    },
    /// A checkpoint that is being committed contradicts itself or the writer.
    #[error("{url} cannot be committed: {why}")]
    Refused {
        /// The checkpoint's URL.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The store replaces objects that were to be created only, so that two coordinators would hold the same lease.
    #[error(
        "{url} was to be created only and was replaced: this store does not honour If-None-Match (create-only writes), \
         which leases and commits rest on"
    )]
    NotCreateOnly {
        /// The object's URL.
        url: String,
    },
    /// No attempt can be numbered after the one that an object names.
    #[error(
        "{url} is of attempt {attempt}, and no lease can follow it: attempts are numbered up to {last}. Nothing but a mistake \
         makes such a name: remove it or move it away, then start the run again",
        last = crate::run::LAST_ATTEMPT
    )]
    LastAttempt {
        /// The object's URL.
        url: String,
        /// The attempt that it names.
        attempt: u32,
    },
    /// The folder that a store writes to was moved or removed.
    #[error(
        "{operation} {url}: the folder {folder} is not there any more (moved, removed, or its file system is not mounted), and \
         is not made again"
    )]
    FolderGone {
        /// What was tried.
        operation: &'static str,
        /// The object's URL.
        url: String,
        /// The folder.
        folder: String,
    },
    /// The lease is not in the run's store, or another one has its name: this attempt must not write there any more.
    #[error(
        "attempt {attempt} has lost the lease of {url}: {object} is not there any more, or not the one that was taken; the run \
         was moved, removed or replaced while it was trained",
        object = crate::run::lease(*attempt)
    )]
    LeaseGone {
        /// The run's URL.
        url: String,
        /// The attempt that asked.
        attempt: u32,
    },
    /// A newer attempt holds the run; this one must not write to it any more.
    #[error("attempt {attempt} has lost the lease of {url}: attempt {newest} holds it")]
    LeaseLost {
        /// The run's URL.
        url: String,
        /// The attempt that asked.
        attempt: u32,
        /// The attempt that holds the run.
        newest: u32,
    },
}

/// Result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the cause is that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the attempt that asked must not write to the run any more.
    pub fn is_lease_lost(&self) -> bool {
        matches!(self, Self::LeaseLost { .. } | Self::LeaseGone { .. })
    }

    /// Whether the object is there but its content is not what was recorded.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::TooLarge { .. })
    }
}

/// A lower layer's failure as text, with every credential of the environment taken out.
///
/// Text, because the layers below quote requests and responses, and only text can be searched for secrets.
#[derive(Debug, Clone)]
pub struct Cause(String);

impl Cause {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        // What is not UTF-8 can have come into a message as its lossy form only.
        let variables = std::env::vars_os();
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self(without_secrets(message.to_string(), variables.map(|(name, value)| (text(name), text(value)))))
    }

    /// The operating system's number of the failure, where its words have one: `(os error 5)`.
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

/// Variables whose names look like these hold secrets; shorter values than this are no secrets but words.
const SECRET_NAMES: [&str; 6] = ["SECRET", "TOKEN", "PASSWORD", "ACCESS_KEY", "ACCOUNT_KEY", "SAS"];
const SHORTEST_SECRET: usize = 8;

fn without_secrets(mut message: String, variables: impl Iterator<Item = (String, String)>) -> String {
    for (name, value) in variables {
        let secret = SECRET_NAMES.iter().any(|part| name.contains(part)) && value.len() >= SHORTEST_SECRET;
        if secret && message.contains(&value) {
            message = message.replace(&value, &format!("[{name}]"));
        }
    }
    message
}

/// An error and all its causes, on one line.
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
    fn secrets_of_the_environment_are_taken_out_of_messages() {
        let variables = [("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI"), ("AWS_REGION", "eu-west-1"), ("SAS", "short")];
        let variables = variables.map(|(name, value)| (name.to_string(), value.to_string()));
        let shown = without_secrets("PUT eu-west-1 short wJalrXUtnFEMI".into(), variables.into_iter());
        assert_eq!(shown, "PUT eu-west-1 short [AWS_SECRET_ACCESS_KEY]");
    }
}
