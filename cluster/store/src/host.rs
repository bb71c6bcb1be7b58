//! Host name.

/// Returns the node name of this host (uname).
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
