//! Locates and loads the CUDA part of libtorch, and checks that its version matches the CPU part that this program
//! links to.

use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::DeviceError;

/// Library name.
pub const LIBRARY: &str = "libtorch_cuda.so";
/// Environment variable that names the directory of the library.
pub const ENV_VAR: &str = "LAMBERT_LIBTORCH";
/// Directory of the NVIDIA libraries in a Python installation, relative to the directory of libtorch_cuda.so.
const WHEEL_LIBS: &str = "../../nvidia";

/// A libtorch installation with CUDA support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libtorch {
    /// Library directory.
    pub folder: PathBuf,
    /// Setting or location that determined the directory.
    pub origin: &'static str,
    /// Version, such as `2.11.0+cu130`.
    pub version: String,
    /// CUDA version that libtorch was built with, such as `13.0`.
    pub cuda: String,
}

impl Libtorch {
    /// Finds libtorch. Search order: `configured` (if not empty), `LAMBERT_LIBTORCH`, lib/ next to the program, the
    /// installed Python package torch, and the download of cluster/setup.sh.
    ///
    /// # Errors
    /// An explicitly set directory has no library, or no library is found. The version is
    /// unknown, or it differs from `expected_version`.
    pub fn find(configured: &str, expected_version: &str) -> Result<Self, DeviceError> {
        let variable = std::env::var_os(ENV_VAR).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = [
            ("device.libtorch", Some(PathBuf::from(configured)).filter(|_| !configured.is_empty())),
            (ENV_VAR, variable),
        ];
        let named = named.into_iter().find_map(|(origin, folder)| Some((origin, folder?)));
        if let Some((origin, folder)) = named {
            return match find_library(&folder) {
                Some(found) => Self::from_dir(found, origin, expected_version),
                None => Err(DeviceError::LibtorchNotInFolder { folder, origin }),
            };
        }
        let program = std::env::current_exe().unwrap_or_default();
        let program_dir = program.parent().unwrap_or(Path::new("/"));
        let mut searched = vec![program_dir.join("lib"), program_dir.join("../lib")];
        if let Some(found) = searched.iter().find_map(|folder| find_library(folder)) {
            return Self::from_dir(found, "next to the program", expected_version);
        }
        let package = python_package();
        if let Some(found) = package.as_deref().and_then(find_library) {
            return Self::from_dir(found, "the Python package torch", expected_version);
        }
        searched.extend(package);
        let fetched = super::cache_dir().map(|cache| cache.join(format!("libtorch-{expected_version}-cuda/torch")));
        if let Some(found) = fetched.as_deref().and_then(find_library) {
            return Self::from_dir(found, "installed by cluster/setup.sh", expected_version);
        }
        searched.extend(fetched);
        Err(DeviceError::LibtorchNotFound { searched })
    }

    fn from_dir(folder: PathBuf, origin: &'static str, expected_version: &str) -> Result<Self, DeviceError> {
        let file = [folder.join("../version.py"), folder.join("version.py")].into_iter().find(|file| file.exists());
        let text = file.as_deref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let (Some(version), Some(cuda)) = (python_string(&text, "__version__"), python_string(&text, "cuda")) else {
            return Err(DeviceError::LibtorchVersionUnknown { folder });
        };
        if version.split('+').next() != Some(expected_version) {
            return Err(DeviceError::LibtorchVersionMismatch {
                folder,
                version,
                expected_version: expected_version.to_owned(),
            });
        }
        Ok(Self { folder, origin, version, cuda })
    }

    /// Loads the library for the lifetime of the process. Must be called before libtorch is first used, because
    /// libtorch looks for its CUDA part only once.
    ///
    /// # Errors
    /// The library or one of its dependencies cannot be loaded.
    pub fn load(&self) -> Result<(), DeviceError> {
        let path = self.folder.join(LIBRARY);
        // SAFETY: the library belongs to libtorch, and its initializers register operations.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|source| DeviceError::Load { path, source })?;
        // The registered operations refer to the library, so it must not be unloaded.
        std::mem::forget(library);
        Ok(())
    }

    /// Directories that may contain the NVIDIA libraries.
    pub fn nvidia_folders(&self) -> Vec<PathBuf> {
        let packages = std::fs::read_dir(self.folder.join(WHEEL_LIBS)).into_iter().flatten().flatten();
        let packages = packages.map(|entry| entry.path().join("lib"));
        std::iter::once(self.folder.clone()).chain(packages).filter(|folder| folder.is_dir()).collect()
    }
}

/// Returns the directory that contains the library: `folder` or its lib/ subdirectory.
fn find_library(folder: &Path) -> Option<PathBuf> {
    [folder.to_owned(), folder.join("lib")].into_iter().find(|folder| folder.join(LIBRARY).exists())
}

/// Python script that prints the directory of the package torch without importing the package. The script removes the
/// empty first entry of `sys.path`, which is the working directory and therefore untrusted. (The option `-I` would also
/// remove PYTHONPATH and the site packages of the user.)
const PROBE: &str = "\
import sys
sys.path = [entry for entry in sys.path if entry]
import importlib.util
found = importlib.util.find_spec('torch')
print(found.submodule_search_locations[0] if found else '')
";

/// Directory of the Python package torch, if installed.
fn python_package() -> Option<PathBuf> {
    let output = Command::new("python3").args(["-c", PROBE]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    Some(PathBuf::from(folder.trim())).filter(|folder| !folder.as_os_str().is_empty())
}

/// Parses a line `name = 'VALUE'` of version.py in torch. The line may have a type annotation.
fn python_string(text: &str, name: &str) -> Option<String> {
    let rest =
        text.lines().find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with([' ', ':', '='])))?;
    let (_, value) = rest.split_once('=')?;
    let value = value.trim().strip_prefix('\'')?.strip_suffix('\'')?;
    Some(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: &str = "from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n__version__ = '2.11.0+cu130'\n\
                           debug = False\ncuda: Optional[str] = '13.0'\ngit_version = 'abc'\nhip: Optional[str] = None\n";

    fn folder(version: Option<&str>, library: bool) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lib")).unwrap();
        if let Some(version) = version {
            std::fs::write(folder.path().join("version.py"), version).unwrap();
        }
        if library {
            std::fs::write(folder.path().join("lib").join(LIBRARY), "no library").unwrap();
        }
        folder
    }

    fn find(folder: &tempfile::TempDir) -> Result<Libtorch, String> {
        Libtorch::find(folder.path().to_str().unwrap(), "2.11.0").map_err(|error| error.to_string())
    }

    #[test]
    fn finds_library_and_version_in_configured_folder() {
        let whole = folder(Some(VERSION), true);
        let found = find(&whole).unwrap();
        assert_eq!(found.folder, whole.path().join("lib"));
        assert_eq!((found.version.as_str(), found.cuda.as_str()), ("2.11.0+cu130", "13.0"));
    }

    #[test]
    fn reports_each_problem_separately() {
        let message = find(&folder(Some(VERSION), false)).unwrap_err();
        assert!(message.contains("libtorch_cuda.so not found") && message.contains("device.libtorch"), "{message}");
        let message = find(&folder(None, true)).unwrap_err();
        assert!(message.contains("version.py is missing"), "{message}");
        let other = VERSION.replace("2.11.0", "2.9.1");
        let message = find(&folder(Some(&other), true)).unwrap_err();
        assert!(message.contains("is 2.9.1+cu130") && message.contains("install 2.11.0"), "{message}");
        let broken = find(&folder(Some(VERSION), true)).unwrap().load().unwrap_err();
        assert!(broken.to_string().contains("cannot load "), "{broken}");
    }
}
