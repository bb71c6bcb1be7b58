//! Folder of an exported model. It gets its files at once, and never overwrites another.

use std::fs::{DirEntry, File, Permissions, ReadDir};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use lambert_progress::{Progress, Unit};
use lambert_store::run::TRANSFORMERS_CONFIG;

use super::ExportError;
use crate::failure::Failure;

/// Returns an error if `folder` has files or cannot be read.
pub fn refuse_full(folder: &Path) -> Result<(), Failure> {
    let failed = |source| Err(Failure::usage(ExportError::Write { path: folder.to_owned(), source }));
    match std::fs::read_dir(folder).and_then(has_files) {
        Ok(true) => Err(Failure::usage(ExportError::NotEmpty { folder: folder.to_owned() })),
        Ok(false) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_symlink() => {
            failed(io::Error::new(error.kind(), "it is a link to a folder that does not exist"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => failed(source),
    }
}

/// Start of the name of a temporary folder.
const TEMPORARY: &str = ".export-";

fn is_temporary(entry: &DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes())
}

/// True if a folder has entries other than temporary folders, which a killed export leaves behind.
fn has_files(mut entries: ReadDir) -> io::Result<bool> {
    entries.find(|entry| !entry.as_ref().is_ok_and(is_temporary)).transpose().map(|found| found.is_some())
}

/// Number of bytes that are written at a time.
const PIECE: usize = 8 << 20;

/// Writes the files to a temporary folder. Renames it to `folder`, so that the destination is always complete. An
/// existing folder stays, with its mode, and gets the files.
pub fn write(folder: &Path, files: &[(&str, Vec<u8>)], progress: &Progress) -> Result<(), Failure> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Failure::failed(ExportError::Write { path, source })
    };
    let absolute = std::path::absolute(folder).map_err(failed(folder))?;
    let is_new = !absolute.is_dir();
    let place = if is_new { absolute.parent().unwrap_or(&absolute) } else { &absolute };
    std::fs::create_dir_all(place).map_err(failed(place))?;
    let temporary = tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(place).map_err(failed(place))?;
    progress.phase("writing", Unit::Bytes);
    progress.set_total(files.iter().map(|(_, content)| content.len() as u64).sum());
    let mut written = 0;
    for (name, content) in files {
        let path = temporary.path().join(name);
        let mut file = File::create(&path).map_err(failed(&path))?;
        for piece in content.chunks(PIECE) {
            file.write_all(piece).map_err(failed(&path))?;
            written += piece.len() as u64;
            progress.set_done(written);
        }
    }
    if !is_new {
        return move_files(temporary.path(), &absolute, files);
    }
    readable(temporary.path()).map_err(failed(folder))?;
    // The rename replaces an empty folder. It fails if the folder is not empty.
    std::fs::rename(temporary.path(), &absolute).map_err(failed(folder))?;
    // The folder has another name now, so there is nothing to remove.
    let _ = temporary.keep();
    Ok(())
}

/// Moves the files from `temporary`, a folder in `folder`, to `folder`, which has no other files. The configuration
/// is the last one: transformers loads no folder without it. Then removes the temporary folders of earlier
/// exports. Another export to `folder` that is still running fails: `folder` is no longer empty.
fn move_files(temporary: &Path, folder: &Path, files: &[(&str, Vec<u8>)]) -> Result<(), Failure> {
    let failed = |source| Failure::failed(ExportError::Write { path: folder.to_owned(), source });
    if std::fs::read_dir(folder).and_then(has_files).map_err(failed)? {
        return Err(Failure::failed(ExportError::NotEmpty { folder: folder.to_owned() }));
    }
    let mut names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    names.sort_by_key(|name| *name == TRANSFORMERS_CONFIG);
    names.into_iter().try_for_each(|name| std::fs::rename(temporary.join(name), folder.join(name))).map_err(failed)?;
    for entry in std::fs::read_dir(folder).map_err(failed)?.flatten().filter(is_temporary) {
        if let Err(error) = std::fs::remove_dir_all(entry.path()) {
            tracing::warn!("cannot remove {}: {error}", entry.path().display());
        }
    }
    Ok(())
}

/// Lets all users read the folder. At first, only its owner can read a temporary folder.
fn readable(folder: &Path) -> io::Result<()> {
    let mode = std::fs::metadata(folder)?.permissions().mode();
    std::fs::set_permissions(folder, Permissions::from_mode(mode | 0o755))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use lambert_config::exit;

    use super::*;

    #[test]
    fn a_folder_is_written_atomically_and_never_overwrites_another() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("new/model");
        let write = |content: &[u8]| write(&folder, &[("a", content.to_vec())], &Progress::start("writing"));
        write(b"1").unwrap();
        assert_eq!(std::fs::read(folder.join("a")).unwrap(), b"1");
        assert_eq!(refuse_full(&folder).unwrap_err().code, exit::USAGE);
        assert!(write(b"2").is_err());
        assert_eq!(std::fs::read(folder.join("a")).unwrap(), b"1");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn an_existing_folder_stays() {
        let place = tempfile::tempdir().unwrap();
        let [folder, link, dangling] = ["folder", "link", "dangling"].map(|name| place.path().join(name));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o2770)).unwrap();
        // An export was killed.
        std::fs::create_dir(folder.join(".export-1")).unwrap();
        std::fs::write(folder.join(".export-1/weights"), b"1").unwrap();
        let identity = |folder: &Path| folder.metadata().map(|data| (data.ino(), data.mode() & 0o7777)).unwrap();
        let before = identity(&folder);
        symlink("folder", &link).unwrap();
        refuse_full(&link).unwrap();
        let files = [("config.json", b"{}".to_vec()), ("b", b"2".to_vec())];
        write(&link, &files, &Progress::start("writing")).unwrap();
        assert_eq!((identity(&folder), before.1), (before, 0o2770));
        assert!(link.is_symlink());
        let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["b", "config.json"]);
        symlink("absent", &dangling).unwrap();
        let refused = refuse_full(&dangling).unwrap_err();
        assert_eq!(refused.code, exit::USAGE);
    }

    #[test]
    fn a_new_folder_keeps_the_group_of_its_parent() {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), Permissions::from_mode(0o2755)).unwrap();
        let folder = place.path().join("model");
        write(&folder, &[("a", Vec::new())], &Progress::start("writing")).unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o7777, 0o2755);
    }
}
