//! This host.

/// The name of this host.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
