//! Bindings to NVRTC (libnvrtc), the run-time compiler of NVIDIA. NVRTC needs neither a driver nor a C++ compiler.
//! Compiled kernels are cached on disk by source, architecture and compiler version.
//!
//! All functions are documented at <https://docs.nvidia.com/cuda/nvrtc>.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};

use lambert_store::hash::sha256;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use super::cubin::Cubin;
use crate::kernels::cuda::SOURCE;

/// Library names of CUDA 13 and CUDA 12.
pub const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];
/// Library that NVRTC opens by name. NVRTC finds this library only if it is already loaded.
const BUILTINS: &str = "libnvrtc-builtins.so";

/// Compiler options. FMA is disabled, so that every operation rounds separately, as on the host.
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "-default-device"];

/// Compilation error.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The library cannot be loaded.
    #[error("cannot load {}", path.display())]
    Load {
        /// Library.
        path: PathBuf,
        /// Loader error.
        source: libloading::Error,
    },
    /// An NVRTC call failed.
    #[error("NVRTC call {call} failed: {message}")]
    Call {
        /// Function name.
        call: &'static str,
        /// Error description.
        message: String,
    },
    /// The kernels do not compile.
    #[error("NVRTC {version} cannot compile lambert's kernels for {architecture}:\n{log}")]
    Source {
        /// NVRTC version.
        version: String,
        /// GPU architecture, such as `sm_90`.
        architecture: String,
        /// Compiler log.
        log: String,
    },
}

type NvrtcResult = c_int;
/// `nvrtcProgram`.
type Program = *mut c_void;

/// The loaded NVRTC library.
pub struct Nvrtc {
    library: Library,
}

impl Nvrtc {
    /// Loads libnvrtc.so.* and its builtins library from `folder`. Returns `None` if `folder` has no libnvrtc.
    ///
    /// # Errors
    /// The library exists but cannot be loaded.
    pub fn open(folder: &Path) -> Result<Option<Self>, CompileError> {
        let Some(path) = NAMES.iter().map(|name| folder.join(name)).find(|path| path.exists()) else { return Ok(None) };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_builtins = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(BUILTINS))
        };
        for builtins in entries.filter(is_builtins) {
            // The library stays loaded, so that NVRTC finds it by name.
            std::mem::forget(load(&builtins)?);
        }
        Ok(Some(Self { library: load(&path)? }))
    }

    fn symbol<T>(&self, name: &'static str) -> Result<Symbol<T>, CompileError> {
        // SAFETY: callers pass the type from the header of NVIDIA.
        let found = unsafe { self.library.get(name.as_bytes()) };
        found.map_err(|error| CompileError::Call { call: name, message: error.to_string() })
    }

    fn check(&self, call: &'static str, status: NvrtcResult) -> Result<(), CompileError> {
        if status == 0 {
            return Ok(());
        }
        let words = self.symbol::<unsafe extern "C" fn(NvrtcResult) -> *const c_char>("nvrtcGetErrorString")?;
        // SAFETY: the function returns a constant string for any status.
        let message = unsafe { CStr::from_ptr(words(status)) }.to_string_lossy().into_owned();
        Err(CompileError::Call { call, message })
    }

    /// Version, such as `13.0`.
    ///
    /// # Errors
    /// The NVRTC call fails.
    pub fn version(&self) -> Result<String, CompileError> {
        let ask = self.symbol::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> NvrtcResult>("nvrtcVersion")?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both integers outlive the call.
        self.check("nvrtcVersion", unsafe { ask(&raw mut major, &raw mut minor) })?;
        Ok(format!("{major}.{minor}"))
    }

    /// Returns the kernels compiled for `architecture` (such as `sm_90`). Reads the cache file if it is intact.
    /// Otherwise compiles the kernels and writes the cache file. A failure to write the cache is only logged.
    ///
    /// # Errors
    /// The kernels do not compile.
    pub fn kernels(&self, architecture: &str, cache: Option<&Path>) -> Result<Cubin, CompileError> {
        let version = self.version()?;
        let name = sha256([SOURCE, architecture, &version, &OPTIONS.concat()].join("\n").as_bytes());
        let file = cache.map(|folder| folder.join(format!("kernels-{architecture}-{}.sealed", &name[..16])));
        if let Some(code) = file.as_deref().and_then(Cubin::load) {
            return Ok(code);
        }
        let code = self.compile(SOURCE, architecture)?;
        if let Some(Err(error)) = file.as_deref().map(|file| code.save(file)) {
            tracing::debug!("cannot cache the compiled kernels: {error}");
        }
        Ok(code)
    }

    /// Compiles `source` for `architecture`.
    pub(super) fn compile(&self, source: &str, architecture: &str) -> Result<Cubin, CompileError> {
        self.compile_to(source, architecture, ["nvrtcGetCUBINSize", "nvrtcGetCUBIN"]).map(Cubin::new)
    }

    /// Compiles `source` for `architecture`. The NVRTC function `size` returns the length of the result, and `fill` the result.
    fn compile_to(
        &self,
        source: &str,
        architecture: &str,
        [size, fill]: [&'static str; 2],
    ) -> Result<Vec<u8>, CompileError> {
        type CreateProgram = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> NvrtcResult;
        type CompileProgram = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> NvrtcResult;
        type DestroyProgram = unsafe extern "C" fn(*mut Program) -> NvrtcResult;
        let (create, compile) = (
            self.symbol::<CreateProgram>("nvrtcCreateProgram")?,
            self.symbol::<CompileProgram>("nvrtcCompileProgram")?,
        );
        let destroy = self.symbol::<DestroyProgram>("nvrtcDestroyProgram")?;
        let text = |text: &str| {
            CString::new(text)
                .map_err(|error| CompileError::Call { call: "nvrtcCreateProgram", message: error.to_string() })
        };
        let (source, name) = (text(source)?, text("kernels.cu")?);
        let mut program: Program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: NVRTC copies the strings, which outlive the call. No headers are passed.
        let status = unsafe { create(&raw mut program, source.as_ptr(), name.as_ptr(), 0, none, none) };
        self.check("nvrtcCreateProgram", status)?;
        let options = OPTIONS.iter().map(|option| (*option).to_owned());
        let options = options.chain([format!("--gpu-architecture={architecture}")]);
        let options = options.map(|option| text(&option)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program was created above, and the array has as many strings as the count says.
        let status = unsafe { compile(program, pointers.len() as c_int, pointers.as_ptr()) };
        let result = match self.check("nvrtcCompileProgram", status) {
            Ok(()) => self.read_buffer(program, size, fill),
            Err(refused) => Err(self.compile_error(program, architecture, refused)),
        };
        // SAFETY: the program is not used afterwards.
        unsafe { destroy(&raw mut program) };
        result
    }

    /// Reads a buffer of the program. The NVRTC function `size` returns the length, and
    /// the function `fill` the contents.
    fn read_buffer(&self, program: Program, size: &'static str, fill: &'static str) -> Result<Vec<u8>, CompileError> {
        let ask = self.symbol::<unsafe extern "C" fn(Program, *mut usize) -> NvrtcResult>(size)?;
        let get = self.symbol::<unsafe extern "C" fn(Program, *mut c_char) -> NvrtcResult>(fill)?;
        let mut count = 0;
        // SAFETY: the program and the integer outlive the call.
        self.check(size, unsafe { ask(program, &raw mut count) })?;
        let mut bytes = vec![0; count];
        // SAFETY: the buffer has the length that the library reported.
        self.check(fill, unsafe { get(program, bytes.as_mut_ptr().cast::<c_char>()) })?;
        Ok(bytes)
    }

    fn compile_error(&self, program: Program, architecture: &str, refused: CompileError) -> CompileError {
        match (self.read_buffer(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog"), self.version()) {
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
    // SAFETY: this is an NVIDIA library, whose initializers have no preconditions.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    library.map_err(|source| CompileError::Load { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cuda::KERNELS;

    /// NVRTC as installed by tests/setup.sh.
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
    fn kernels_compile_for_every_architecture_and_are_cached() {
        let Some(nvrtc) = nvrtc() else { return };
        let cache = tempfile::tempdir().unwrap();
        // The oldest architecture that is supported, and those of the A100, the H100 and the B200.
        let architectures = ["sm_75", "sm_80", "sm_90", "sm_100"];
        for architecture in architectures {
            let code = nvrtc.kernels(architecture, Some(cache.path())).unwrap();
            let code = code.bytes();
            assert!(code.starts_with(b"\x7fELF"), "{architecture}");
            let has = |name: &str| code.windows(name.len()).any(|window| window == name.as_bytes());
            for kernel in KERNELS {
                assert!(has(&format!("lambert_{kernel}")), "{kernel} for {architecture}");
            }
        }
        let files = fs::read_dir(cache.path()).unwrap().count();
        assert_eq!(files, architectures.len());
        // A damaged cache file is recompiled and replaced.
        let file = fs::read_dir(cache.path()).unwrap().next().unwrap().unwrap().path();
        let cached = fs::read(&file).unwrap();
        let mut damaged = cached.clone();
        damaged[cached.len() / 2] ^= 1;
        fs::write(&file, &damaged).unwrap();
        for architecture in architectures {
            nvrtc.kernels(architecture, Some(cache.path())).unwrap();
        }
        assert!(fs::read(&file).unwrap() == cached, "a damaged file was loaded");
    }

    /// Returns the PTX instructions of a kernel.
    fn instructions<'a>(ptx: &'a str, kernel: &str) -> &'a str {
        let (_, body) = ptx.split_once(&format!(".entry lambert_{kernel}(")).unwrap();
        body.split_once("\n}").unwrap().0
    }

    #[test]
    fn kernels_of_dropout_and_cross_entropy_access_four_elements_at_a_time() {
        let Some(nvrtc) = nvrtc() else { return };
        let ptx = nvrtc.compile_to(SOURCE, "compute_90", ["nvrtcGetPTXSize", "nvrtcGetPTX"]).unwrap();
        let ptx = String::from_utf8(ptx).unwrap();
        for (kernel, stores) in [
            ("dropout_f32", true),
            ("dropout_bf16", true),
            ("cross_entropy_f32", false),
            ("cross_entropy_bf16", false),
            ("cross_entropy_backward_f32", true),
            ("cross_entropy_backward_bf16", true),
        ] {
            let element = if kernel.ends_with("_bf16") { "u16" } else { "f32" };
            let body = instructions(&ptx, kernel);
            let accesses: Vec<&str> = body.split_whitespace().filter(|word| word.contains(".global.")).collect();
            let has = |access: &str| accesses.contains(&format!("{access}.global.v4.{element}").as_str());
            assert!(has("ld") && (has("st") || !stores), "{kernel}: {accesses:?}");
        }
    }

    #[test]
    fn a_failed_compilation_shows_the_log() {
        let Some(nvrtc) = nvrtc() else { return };
        let message = nvrtc.compile("__global__ void broken() { int x = nothing; }", "sm_90").unwrap_err().to_string();
        assert!(message.contains("for sm_90") && message.contains("\"nothing\" is undefined"), "{message}");
        let message = nvrtc.compile(SOURCE, "sm_1").unwrap_err().to_string();
        assert!(message.contains("sm_1") && message.contains("invalid value for --gpu-architecture"), "{message}");
    }
}
