//! Files that a command writes for the user.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use tempfile::NamedTempFile;

/// Mode of a new file. At first, only its owner can read a temporary file.
const MODE: u32 = 0o644;
/// Maximum length of a chain of symbolic links.
const MAX_LINKS: usize = 40;

/// File that is being written. A regular file gets its name when it is complete, and an existing file remains until then. A pipe
/// or a device such as `/dev/stdout` is written directly.
#[derive(Debug)]
pub struct OutputFile(Target);

#[derive(Debug)]
enum Target {
    Regular { file: Temporary, path: PathBuf },
    Special(File),
}

/// File without its final name.
#[derive(Debug)]
enum Temporary {
    /// Without any name. If this process is killed, nothing is left.
    Unnamed(File),
    /// With a temporary name, on file systems that need one, such as NFS.
    Named(NamedTempFile),
}

impl Temporary {
    fn create(folder: &Path) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) if descriptor(file.as_raw_fd()).exists() => Ok(Self::Unnamed(file.into())),
            _ => NamedTempFile::new_in(folder).map(Self::Named),
        }
    }

    fn file(&mut self) -> &mut File {
        match self {
            Self::Unnamed(file) => file,
            Self::Named(file) => file.as_file_mut(),
        }
    }

    /// Gives the file its final name. Replaces an existing file.
    fn persist(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Named(file) => file.persist(path).map(drop).map_err(|error| error.error),
            Self::Unnamed(file) => {
                let from = descriptor(file.as_raw_fd());
                // A link cannot replace a file, but a renamed link can.
                let link = |to: &Path| Ok(rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW)?);
                let named = tempfile::Builder::new().make_in(path.parent().unwrap_or(path), link)?;
                named.into_temp_path().persist(path).map_err(|error| error.error)
            }
        }
    }
}

/// Path of an open file of this process.
fn descriptor(number: i32) -> PathBuf {
    format!("/proc/self/fd/{number}").into()
}

impl OutputFile {
    /// Starts a file at `path`, in a folder that is created if it is missing. Symbolic links are followed.
    ///
    /// # Errors
    /// The file cannot be created, or `path` is a folder.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = resolve(std::path::absolute(path)?)?;
        if is_descriptor(&path) {
            return OpenOptions::new().write(true).open(&path).map(|file| Self(Target::Special(file)));
        }
        let existing = match std::fs::metadata(&path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match &existing {
            Some(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Some(metadata) if !metadata.is_file() => {
                OpenOptions::new().write(true).open(&path).map(|file| Self(Target::Special(file)))
            }
            _ => {
                let folder = path.parent().unwrap_or(&path);
                std::fs::create_dir_all(folder)?;
                let mut file = Temporary::create(folder)?;
                let mode = existing.as_ref().map_or(MODE, mode);
                file.file().set_permissions(Permissions::from_mode(mode))?;
                Ok(Self(Target::Regular { file, path }))
            }
        }
    }

    /// Completes the file.
    ///
    /// # Errors
    /// The file cannot be written or renamed.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Target::Special(mut file) => file.flush(),
            Target::Regular { mut file, path } => {
                file.file().sync_all()?;
                file.persist(&path)
            }
        }
    }
}

/// True if both paths name the same regular file. Links are followed.
#[must_use]
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let metadata = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        Some((metadata.dev(), metadata.ino()))
    };
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

fn mode(metadata: &Metadata) -> u32 {
    metadata.permissions().mode() & 0o7777
}

/// True for a file that a process has open, such as `/dev/fd/3`. It may have no path, but can be opened by this name.
fn is_descriptor(path: &Path) -> bool {
    path.parent().and_then(|folder| folder.canonicalize().ok()).is_some_and(|folder| folder.starts_with("/proc"))
}

/// Follows the symbolic links at `path`. The target need not exist.
fn resolve(mut path: PathBuf) -> io::Result<PathBuf> {
    for _ in 0..MAX_LINKS {
        match std::fs::read_link(&path) {
            Ok(_) if is_descriptor(&path) => return Ok(path),
            Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Target::Regular { file, .. } => file.file().write(bytes),
            Target::Special(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Target::Regular { file, .. } => file.file().flush(),
            Target::Special(file) => file.flush(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = OutputFile::create(path)?;
        file.write_all(bytes)?;
        file.finish()
    }

    #[test]
    fn an_unfinished_file_leaves_the_existing_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        write(&path, b"first").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        OutputFile::create(&path).unwrap().write_all(b"half of the sec").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
        write(&path, b"second").unwrap();
        assert_eq!(
            (std::fs::read(&path).unwrap().as_slice(), mode(&path.metadata().unwrap())),
            (&b"second"[..], 0o600)
        );
    }

    /// A killed command cannot remove anything.
    #[test]
    fn nothing_is_left_of_a_file_whose_process_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let mut file = OutputFile::create(&folder.path().join("file")).unwrap();
        file.write_all(b"half of the text").unwrap();
        assert_eq!(names(), 0);
        drop(file);
        // File systems such as NFS need a temporary name.
        let mut named = Temporary::Named(NamedTempFile::new_in(folder.path()).unwrap());
        named.file().write_all(b"text").unwrap();
        named.persist(&folder.path().join("file")).unwrap();
        assert_eq!((names(), std::fs::read(folder.path().join("file")).unwrap()), (1, b"text".to_vec()));
    }

    #[test]
    fn links_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [link, other, target] = ["link", "other", "target"].map(|name| folder.path().join(name));
        symlink("other", &link).unwrap();
        symlink("target", &other).unwrap();
        for text in ["first", "second"] {
            write(&link, text.as_bytes()).unwrap();
            assert!(link.is_symlink() && other.is_symlink());
            assert_eq!(std::fs::read_to_string(&target).unwrap(), text);
        }
        symlink("loop", folder.path().join("loop")).unwrap();
        assert!(write(&folder.path().join("loop"), b"").is_err());
        assert_eq!(write(folder.path(), b"").unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn links_name_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, hard_link, other] = ["file", "link", "hard", "other"].map(|name| folder.path().join(name));
        write(&file, b"text").unwrap();
        write(&other, b"text").unwrap();
        symlink("file", &link).unwrap();
        std::fs::hard_link(&file, &hard_link).unwrap();
        for same in [&file, &link, &hard_link] {
            assert!(is_same_file(&file, same) && !is_same_file(&other, same), "{}", same.display());
        }
        let [absent, null] = [folder.path().join("absent"), "/dev/null".into()];
        assert!(!is_same_file(&absent, &absent) && !is_same_file(&null, &null));
    }

    #[test]
    fn pipes_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let mut text = String::new();
                File::open(pipe).unwrap().read_to_string(&mut text).unwrap();
                text
            }
        });
        write(&pipe, b"through the pipe").unwrap();
        assert_eq!(reader.join().unwrap(), "through the pipe");
        assert!(!pipe.metadata().unwrap().is_file());
        let device = folder.path().join("null");
        symlink("/dev/null", &device).unwrap();
        write(&device, b"nothing").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    }
}
