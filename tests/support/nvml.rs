//! Emulated NVML (nvml.c) in place of the library of the driver.

use std::path::Path;
use std::process::Command;

use super::TestDir;

/// UUID of the GPU on bus 2. Rank 1 uses this GPU, which has the index 0 in NVML.
pub const UUID: &str = "GPU-00000000-0000-0000-0000-000000000002";
/// File name of the library.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Compiles the library with `options`. Returns its path.
pub fn build(dir: &TestDir, options: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/nvml.c");
    let library = dir.path(LIBRARY);
    let mut compiler = Command::new("cc");
    let built = compiler.args(["-shared", "-fPIC", "-o", &library]).args(options).arg(source).status();
    assert!(built.unwrap().success());
    library
}

/// Arguments of a run that uses the library.
pub fn arguments(library: &str) -> [String; 2] {
    ["--set".to_owned(), format!("test.gpu={library:?}")]
}

/// Causes an Xid error of the GPU of rank 1.
pub fn cause_xid(dir: &TestDir, xid: u64) {
    dir.file(&format!("{LIBRARY}.xid-2"), xid.to_string());
}

/// Removes the GPU of rank 1 from the host.
pub fn remove_gpu(dir: &TestDir) {
    dir.file(&format!("{LIBRARY}.gone-2"), "");
}

/// Returns the GPU of rank 1 to the host.
pub fn return_gpu(dir: &TestDir) {
    std::fs::remove_file(dir.path(&format!("{LIBRARY}.gone-2"))).unwrap();
}
