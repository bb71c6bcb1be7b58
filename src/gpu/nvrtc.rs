//! NVIDIA's run-time compiler (libnvrtc), which needs no driver and no compiler on the machine. A compiled program is kept on
//! disk, by its source, the card's architecture and the compiler's version.
//!
//! Every function here is one of <https://docs.nvidia.com/cuda/nvrtc>.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};

use lambert_store::hash::sha256;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use super::cubin::Cubin;
use crate::kernels::cuda::SOURCE;

/// The library, by the names that versions 13 and 12 of CUDA give it.
pub const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];
/// What it looks for beside itself, and does not find unless it is loaded already.
const BUILTINS: &str = "libnvrtc-builtins.so";

/// One rounding for each operation, as on the host.
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "-default-device"];

/// Why there are no kernels.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The library cannot be loaded.
    #[error("cannot load {}", path.display())]
    Load {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: libloading::Error,
    },
    /// The compiler refuses a call.
    #[error("NVRTC's {call} failed: {said}")]
    Call {
        /// Which.
        call: &'static str,
        /// Why.
        said: String,
    },
    /// The compiler refuses the kernels.
    #[error("NVRTC {version} does not compile lambert's kernels for {architecture}:\n{log}")]
    Source {
        /// The compiler's version.
        version: String,
        /// The card's architecture, as `sm_90`.
        architecture: String,
        /// What the compiler says.
        log: String,
    },
}

type Status = c_int;
/// A program that is compiled, as the library knows it.
type Program = *mut c_void;

/// The compiler.
pub struct Nvrtc {
    library: Library,
}

impl Nvrtc {
    /// Loads `folder`/libnvrtc.so.*, and what it needs from there; `None` if there is no such file.
    ///
    /// # Errors
    /// There is one, and it cannot be loaded.
    pub fn open(folder: &Path) -> Result<Option<Self>, CompileError> {
        let Some(path) = NAMES.iter().map(|name| folder.join(name)).find(|path| path.exists()) else { return Ok(None) };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_builtins = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(BUILTINS))
        };
        for builtins in entries.filter(is_builtins) {
            // It stays loaded, so that the compiler finds it by its name.
            std::mem::forget(load(&builtins)?);
        }
        Ok(Some(Self { library: load(&path)? }))
    }

    fn symbol<T>(&self, name: &'static str) -> Result<Symbol<T>, CompileError> {
        // SAFETY: each caller gives the type that NVIDIA's header has for this name.
        let found = unsafe { self.library.get(name.as_bytes()) };
        found.map_err(|error| CompileError::Call { call: name, said: error.to_string() })
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), CompileError> {
        if status == 0 {
            return Ok(());
        }
        let words = self.symbol::<unsafe extern "C" fn(Status) -> *const c_char>("nvrtcGetErrorString")?;
        // SAFETY: returns a constant string for any status.
        let said = unsafe { CStr::from_ptr(words(status)) }.to_string_lossy().into_owned();
        Err(CompileError::Call { call, said })
    }

    /// As `13.0`.
    ///
    /// # Errors
    /// The library has no such function.
    pub fn version(&self) -> Result<String, CompileError> {
        let ask = self.symbol::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status>("nvrtcVersion")?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both integers live for the call.
        self.check("nvrtcVersion", unsafe { ask(&raw mut major, &raw mut minor) })?;
        Ok(format!("{major}.{minor}"))
    }

    /// The kernels as machine code for `architecture`, as `sm_90`; from `cache` if it is there and sound, and put there if
    /// not. A cache that cannot be written is none.
    ///
    /// # Errors
    /// They do not compile.
    pub fn kernels(&self, architecture: &str, cache: Option<&Path>) -> Result<Cubin, CompileError> {
        let version = self.version()?;
        let name = sha256([SOURCE, architecture, &version, &OPTIONS.concat()].join("\n").as_bytes());
        let file = cache.map(|folder| folder.join(format!("kernels-{architecture}-{}.sealed", &name[..16])));
        if let Some(code) = file.as_deref().and_then(Cubin::read) {
            return Ok(code);
        }
        let code = self.compile(SOURCE, architecture)?;
        if let Some(Err(error)) = file.as_deref().map(|file| code.keep(file)) {
            tracing::debug!("the compiled kernels are not kept: {error}");
        }
        Ok(code)
    }

    /// Machine code of `source` for `architecture`.
    pub(super) fn compile(&self, source: &str, architecture: &str) -> Result<Cubin, CompileError> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> Status;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status;
        type Destroy = unsafe extern "C" fn(*mut Program) -> Status;
        let (create, compile) =
            (self.symbol::<Create>("nvrtcCreateProgram")?, self.symbol::<Compile>("nvrtcCompileProgram")?);
        let destroy = self.symbol::<Destroy>("nvrtcDestroyProgram")?;
        let text = |text: &str| {
            CString::new(text)
                .map_err(|error| CompileError::Call { call: "nvrtcCreateProgram", said: error.to_string() })
        };
        let (source, name) = (text(source)?, text("kernels.cu")?);
        let mut program: Program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: the strings live for the call, which copies them; there are no headers.
        let status = unsafe { create(&raw mut program, source.as_ptr(), name.as_ptr(), 0, none, none) };
        self.check("nvrtcCreateProgram", status)?;
        let options = OPTIONS.iter().map(|option| (*option).to_owned());
        let options = options.chain([format!("--gpu-architecture={architecture}")]);
        let options = options.map(|option| text(&option)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: a program from above, and as many strings as it is told.
        let status = unsafe { compile(program, pointers.len() as c_int, pointers.as_ptr()) };
        let result = match self.check("nvrtcCompileProgram", status) {
            Ok(()) => self.bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN").map(Cubin::compiled),
            Err(refused) => Err(self.refusal(program, architecture, refused)),
        };
        // SAFETY: the program is not used any more.
        unsafe { destroy(&raw mut program) };
        result
    }

    /// What a call that fills a buffer gives, after one that tells its size.
    fn bytes(&self, program: Program, size: &'static str, fill: &'static str) -> Result<Vec<u8>, CompileError> {
        let ask = self.symbol::<unsafe extern "C" fn(Program, *mut usize) -> Status>(size)?;
        let get = self.symbol::<unsafe extern "C" fn(Program, *mut c_char) -> Status>(fill)?;
        let mut count = 0;
        // SAFETY: the program and the number live for the call.
        self.check(size, unsafe { ask(program, &raw mut count) })?;
        let mut bytes = vec![0; count];
        // SAFETY: as many bytes as the library has just asked for.
        self.check(fill, unsafe { get(program, bytes.as_mut_ptr().cast::<c_char>()) })?;
        Ok(bytes)
    }

    fn refusal(&self, program: Program, architecture: &str, refused: CompileError) -> CompileError {
        match (self.bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog"), self.version()) {
            (Ok(log), Ok(version)) => {
                let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned();
                let log = if log.is_empty() { refused.to_string() } else { log };
                CompileError::Source { version, architecture: architecture.to_owned(), log }
            }
            _ => refused,
        }
    }
}

fn load(path: &Path) -> Result<Library, CompileError> {
    // SAFETY: NVIDIA's library; its initializers have no conditions.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    library.map_err(|source| CompileError::Load { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compiler of tests/setup.sh.
    fn nvrtc() -> Option<Nvrtc> {
        let named = std::env::var_os("LAMBERT_TEST_NVRTC").map(PathBuf::from);
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        let folder = named.or_else(|| Some(cache?.join("lambert/nvrtc-13.0.88")))?;
        let found = Nvrtc::open(&folder).unwrap();
        if found.is_none() {
            eprintln!(
                "SKIPPED: no {} in {}; tests/setup.sh fetches it (pip download nvidia-cuda-nvrtc==13.0.88)",
                NAMES[0],
                folder.display()
            );
        }
        found
    }

    #[test]
    fn kernels_compile_for_every_architecture_and_are_kept() {
        let Some(nvrtc) = nvrtc() else { return };
        let cache = tempfile::tempdir().unwrap();
        for architecture in ["sm_80", "sm_90", "sm_100"] {
            let code = nvrtc.kernels(architecture, Some(cache.path())).unwrap();
            let code = code.bytes();
            assert!(code.starts_with(b"\x7fELF"), "{architecture}");
            let has = |name: &str| code.windows(name.len()).any(|window| window == name.as_bytes());
            for kernel in ["dropout_f32", "dropout_bf16", "squares", "root_of_sums", "adamw"] {
                assert!(has(&format!("lambert_{kernel}")), "{kernel} for {architecture}");
            }
        }
        let files = fs::read_dir(cache.path()).unwrap().count();
        assert_eq!(files, 3);
        // What is kept is taken if it is whole; else it is compiled again, and kept.
        let file = fs::read_dir(cache.path()).unwrap().next().unwrap().unwrap().path();
        let kept = fs::read(&file).unwrap();
        let mut damaged = kept.clone();
        damaged[kept.len() / 2] ^= 1;
        fs::write(&file, &damaged).unwrap();
        for architecture in ["sm_80", "sm_90", "sm_100"] {
            nvrtc.kernels(architecture, Some(cache.path())).unwrap();
        }
        assert!(fs::read(&file).unwrap() == kept, "a damaged file was taken");
    }

    #[test]
    fn a_failed_compilation_shows_the_log() {
        let Some(nvrtc) = nvrtc() else { return };
        let said = nvrtc.compile("__global__ void broken() { int x = nothing; }", "sm_90").unwrap_err().to_string();
        assert!(said.contains("for sm_90") && said.contains("\"nothing\" is undefined"), "{said}");
        let said = nvrtc.compile(SOURCE, "sm_1").unwrap_err().to_string();
        assert!(said.contains("sm_1") && said.contains("invalid value for --gpu-architecture"), "{said}");
    }
}
