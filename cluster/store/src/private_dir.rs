//! Private directories (mode 0700) below /tmp, /var/tmp and /dev/shm. Any user can predict such a path and create it
//! first.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Creates `path` with mode 0700. The parent directory must exist. Accepts an existing directory if this user owns it
/// and no other user can write to it, and sets its mode to 0700.
///
/// # Errors
/// The directory cannot be created. Or `path` exists but belongs to another user, is not a directory (a symbolic link
/// is not one, either), or is writable by other users. If another user owns `path`, the message contains the uid.
pub fn create(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => accept(path),
        created => created,
    }
}

/// True if users other than the owner may create files in `path`. A path that is missing or cannot be read counts as
/// unsafe.
pub fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |found| found.mode() & OTHERS_WRITE != 0)
}

/// Mode bits that permit the group or others to write.
const OTHERS_WRITE: u32 = 0o022;

fn accept(path: &Path) -> io::Result<()> {
    let (found, user) = (fs::symlink_metadata(path)?, rustix::process::geteuid().as_raw());
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if found.uid() != user {
        return refused(format!("it belongs to user {}, expected user {user}; have it removed", found.uid()));
    }
    if !found.is_dir() {
        let kind = if found.is_symlink() { "a symbolic link" } else { "not a directory" };
        return refused(format!("it is {kind}, expected a directory; remove it"));
    }
    if found.mode() & OTHERS_WRITE != 0 {
        let mode = found.mode() & 0o7777;
        return refused(format!("other users may write to it (mode {mode:04o}), expected mode 0700; remove it"));
    }
    match found.mode() & 0o777 {
        0o700 => Ok(()),
        _ => fs::set_permissions(path, Permissions::from_mode(0o700)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn refusal(path: &Path) -> String {
        let error = create(path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        error.to_string()
    }

    #[test]
    fn a_directory_is_created_and_later_reused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("own");
        create(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        create(&path).unwrap();
        // Older versions created the directory with this mode. No other user can write to it.
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        create(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn directories_writable_by_others_are_rejected() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("open");
        fs::create_dir(&path).unwrap();
        for open in [0o777, 0o1777, 0o720] {
            fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
            let why = refusal(&path);
            assert!(why.contains(&format!("other users may write to it (mode {open:04o})")), "{why}");
            assert_eq!(mode(&path), open, "it stays as it is");
        }
        let (link, file) = (parent.path().join("link"), parent.path().join("file"));
        let target = parent.path().join("target");
        create(&target).unwrap();
        symlink(&target, &link).unwrap();
        fs::write(&file, "").unwrap();
        assert!(refusal(&link).contains("it is a symbolic link"));
        assert!(refusal(&file).contains("it is not a directory"));
    }

    /// The user `nobody` creates the path first: as a directory with mode 0700, as a directory with mode 0777, or as a
    /// symbolic link.
    #[test]
    fn a_directory_of_another_user_is_rejected() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can act as another user");
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        fs::set_permissions(parent.path(), Permissions::from_mode(0o1777)).unwrap();
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        for (name, made) in [("closed", "mkdir -m 0700"), ("open", "mkdir -m 0777"), ("link", "ln -s /etc")] {
            let path = parent.path().join(name);
            let words = made.split(' ').chain([path.to_str().unwrap()]);
            assert!(Command::new("setpriv").args(nobody).args(words).status().unwrap().success(), "{made}");
            let why = refusal(&path);
            assert!(why.contains("it belongs to user 65534, expected user 0"), "{why}");
        }
    }
}
