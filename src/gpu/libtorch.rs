//! Where the CUDA half of libtorch is, and whether it belongs to the half that this program was built with.

use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::DeviceError;

/// What it is called.
pub const NAME: &str = "libtorch_cuda.so";
/// Names a folder that it is in.
pub const VARIABLE: &str = "LAMBERT_LIBTORCH";
/// Below this folder, from the one that libtorch_cuda.so is in, a Python installation has NVIDIA's libraries.
const WHEELS: &str = "../../nvidia";

/// A CUDA libtorch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libtorch {
    /// The folder of its libraries.
    pub folder: PathBuf,
    /// What named the folder.
    pub origin: &'static str,
    /// As `2.11.0+cu130`.
    pub version: String,
    /// The version of CUDA that it was built with, as `13.0`.
    pub cuda: String,
}

impl Libtorch {
    /// The first of: the folder `configured`, unless that is empty; the one that `LAMBERT_LIBTORCH` names; lib/ beside the
    /// program; the installed Python package torch; what cluster/setup.sh has fetched.
    ///
    /// # Errors
    /// A folder that somebody named has none; or there is none anywhere; or it does not tell its version, or is of another
    /// one than `built_with`.
    pub fn find(configured: &str, built_with: &str) -> Result<Self, DeviceError> {
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = [
            ("device.libtorch", Some(PathBuf::from(configured)).filter(|_| !configured.is_empty())),
            (VARIABLE, variable),
        ];
        let named = named.into_iter().find_map(|(origin, folder)| Some((origin, folder?)));
        if let Some((origin, folder)) = named {
            return match within(&folder) {
                Some(found) => Self::of(found, origin, built_with),
                None => Err(DeviceError::NotThere { folder, origin }),
            };
        }
        let program = std::env::current_exe().unwrap_or_default();
        let beside = program.parent().unwrap_or(Path::new("/"));
        let mut looked = vec![beside.join("lib"), beside.join("../lib")];
        if let Some(found) = looked.iter().find_map(|folder| within(folder)) {
            return Self::of(found, "beside the program", built_with);
        }
        let package = python_package();
        if let Some(found) = package.as_deref().and_then(within) {
            return Self::of(found, "the Python package torch", built_with);
        }
        looked.extend(package);
        let fetched = super::cache().map(|cache| cache.join(format!("libtorch-{built_with}-cuda/torch")));
        if let Some(found) = fetched.as_deref().and_then(within) {
            return Self::of(found, "fetched by cluster/setup.sh", built_with);
        }
        looked.extend(fetched);
        Err(DeviceError::Nowhere { looked })
    }

    fn of(folder: PathBuf, origin: &'static str, built_with: &str) -> Result<Self, DeviceError> {
        let file = [folder.join("../version.py"), folder.join("version.py")].into_iter().find(|file| file.exists());
        let text = file.as_deref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let (Some(version), Some(cuda)) = (value(&text, "__version__"), value(&text, "cuda")) else {
            return Err(DeviceError::NoVersion { folder });
        };
        if version.split('+').next() != Some(built_with) {
            return Err(DeviceError::OtherVersion { folder, version, built_with: built_with.to_owned() });
        }
        Ok(Self { folder, origin, version, cuda })
    }

    /// Loads it into this process, for good. Before libtorch is first used: it looks for its CUDA half once.
    ///
    /// # Errors
    /// It, or a library that it needs, cannot be loaded.
    pub fn load(&self) -> Result<(), DeviceError> {
        let path = self.folder.join(NAME);
        // SAFETY: libtorch's own library, whose initializers register its operations.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|source| DeviceError::Load { path, source })?;
        // Its operations are registered in the process: it cannot go again.
        std::mem::forget(library);
        Ok(())
    }

    /// Folders that NVIDIA's libraries may be in.
    pub fn nvidia_folders(&self) -> Vec<PathBuf> {
        let packages = std::fs::read_dir(self.folder.join(WHEELS)).into_iter().flatten().flatten();
        let packages = packages.map(|entry| entry.path().join("lib"));
        std::iter::once(self.folder.clone()).chain(packages).filter(|folder| folder.is_dir()).collect()
    }
}

/// The folder, or lib/ below it, with the library.
fn within(folder: &Path) -> Option<PathBuf> {
    [folder.to_owned(), folder.join("lib")].into_iter().find(|folder| folder.join(NAME).exists())
}

/// Prints where Python's package torch is, without importing it. With `-c` Python looks into the working directory first, which
/// may be anybody's: the first entry, which is empty. (`-I` would hide the packages of the user and of PYTHONPATH, too.)
const PROBE: &str = "\
import sys
sys.path = [entry for entry in sys.path if entry]
import importlib.util
found = importlib.util.find_spec('torch')
print(found.submodule_search_locations[0] if found else '')
";

/// Where Python's package torch is.
fn python_package() -> Option<PathBuf> {
    let told = Command::new("python3").args(["-c", PROBE]).output().ok()?;
    let folder = String::from_utf8(told.stdout).ok()?;
    Some(PathBuf::from(folder.trim())).filter(|folder| !folder.as_os_str().is_empty())
}

/// What a line `name = 'VALUE'` of torch's version.py says; a type may stand behind the name.
fn value(text: &str, name: &str) -> Option<String> {
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
            std::fs::write(folder.path().join("lib").join(NAME), "no library").unwrap();
        }
        folder
    }

    fn find(folder: &tempfile::TempDir) -> Result<Libtorch, String> {
        Libtorch::find(folder.path().to_str().unwrap(), "2.11.0").map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_tells_what_it_is() {
        let whole = folder(Some(VERSION), true);
        let found = find(&whole).unwrap();
        assert_eq!(found.folder, whole.path().join("lib"));
        assert_eq!((found.version.as_str(), found.cuda.as_str()), ("2.11.0+cu130", "13.0"));
    }

    #[test]
    fn what_is_wrong_has_a_message_of_its_own() {
        let said = find(&folder(Some(VERSION), false)).unwrap_err();
        assert!(said.contains("has no libtorch_cuda.so") && said.contains("device.libtorch"), "{said}");
        let said = find(&folder(None, true)).unwrap_err();
        assert!(said.contains("has no version.py"), "{said}");
        let other = VERSION.replace("2.11.0", "2.9.1");
        let said = find(&folder(Some(&other), true)).unwrap_err();
        assert!(said.contains("is 2.9.1+cu130") && said.contains("built with 2.11.0"), "{said}");
        let broken = find(&folder(Some(VERSION), true)).unwrap().load().unwrap_err();
        assert!(broken.to_string().contains("cannot load "), "{broken}");
    }
}
