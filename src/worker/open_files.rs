//! Limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to its maximum. A rank that waits for others connects to all of them.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, a run with few ranks still works.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
