//! The file with the bearer token, and the file that tells Prometheus where the coordinator is.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::server::ServerError;

/// Token file of a user, in the home folder.
const DEFAULT: &str = ".config/lambert/prometheus.token";
/// Maximum size of a token file, bytes.
const MAX_TOKEN_BYTES: u64 = 4096;
/// Permissions of group and others.
const OTHERS: u32 = 0o077;

/// Reads the token of `file` (empty: the user's default), or creates it.
pub fn token(file: &str) -> Result<String, ServerError> {
    let path = match (file, std::env::home_dir()) {
        ("", Some(home)) => home.join(DEFAULT),
        ("", None) => return Err(ServerError::NoHome),
        (file, _) => PathBuf::from(file),
    };
    let failed = |source| ServerError::Token { path: path.clone(), source };
    match File::open(&path) {
        Ok(file) => read(file).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create(&path).and_then(|()| read(File::open(&path)?)).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

fn read(file: File) -> io::Result<String> {
    let refused = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
    let (facts, user) = (file.metadata()?, rustix::process::geteuid().as_raw());
    if facts.uid() != user {
        return Err(refused(format!("it belongs to user {}, expected user {user}", facts.uid())));
    }
    if !facts.is_file() || facts.mode() & OTHERS != 0 {
        let mode = facts.mode() & 0o7777;
        return Err(refused(format!("other users may read it (mode {mode:04o}), expected a file of mode 0600")));
    }
    let mut text = String::new();
    file.take(MAX_TOKEN_BYTES).read_to_string(&mut text)?;
    match text.trim() {
        "" => Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty; delete it to have a token created")),
        token => Ok(token.to_owned()),
    }
}

/// Creates a file of mode 600 with a random token, unless another process has.
fn create(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    writeln!(file, "{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())?;
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        _ => Ok(()),
    }
}

/// Discovery file of a run, for `file_sd_configs`.
#[derive(Debug)]
pub struct Discovery {
    path: Option<PathBuf>,
    name: String,
}

impl Discovery {
    /// Discovery of the run `name` in `file`; empty: none.
    pub fn new(file: &str, name: &str) -> Self {
        Self { path: (!file.is_empty()).then(|| PathBuf::from(file)), name: name.to_owned() }
    }

    /// Writes the coordinator's address. Logs a warning on failure.
    pub fn write(&self, target: &str) {
        self.put(&self.group(target));
    }

    /// Removes the coordinator's address, unless another coordinator has replaced it. Logs a warning on failure.
    pub fn clear(&self, target: &str) {
        let found = self.path.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        if found.is_some_and(|found| found.trim_end() == self.group(target)) {
            self.put("[]");
        }
    }

    fn group(&self, target: &str) -> String {
        json!([{ "targets": [target], "labels": { "run": self.name } }]).to_string()
    }

    fn put(&self, text: &str) {
        let Some(path) = &self.path else { return };
        if let Err(error) = replace(path, text) {
            tracing::warn!("cannot write prometheus.discovery_file {}: {error}; training continues", path.display());
        }
    }
}

/// Replaces a file atomically. Prometheus may run as another user.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o644)).tempfile_in(folder)?;
    writeln!(file, "{text}")?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_created_once_and_kept_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/token");
        let name = path.to_str().unwrap();
        let created = token(name).unwrap();
        assert_eq!((created.len(), token(name).unwrap() == created), (64, true));
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let refused = crate::failure::chain(&token(name).unwrap_err());
        assert!(refused.contains("other users may read it (mode 0640), expected a file of mode 0600"), "{refused}");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "\n").unwrap();
        assert!(crate::failure::chain(&token(name).unwrap_err()).contains("it is empty"));
    }

    #[test]
    fn the_discovery_file_names_the_coordinator() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("demo.json");
        let discovery = Discovery::new(path.to_str().unwrap(), "demo");
        discovery.write("node1:9400");
        let read = || std::fs::read_to_string(&path).unwrap();
        let written = "[{\"targets\":[\"node1:9400\"],\"labels\":{\"run\":\"demo\"}}]\n";
        assert_eq!(read(), written);
        discovery.clear("node2:9400");
        assert_eq!(read(), written, "of another coordinator");
        discovery.clear("node1:9400");
        assert_eq!((read(), path.metadata().unwrap().mode() & 0o777), ("[]\n".to_owned(), 0o644));
    }
}
