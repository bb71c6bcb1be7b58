//! Compiles the C++ shim over libtorch, and adds the location of libtorch to the rpath of the binaries.

use std::path::PathBuf;

fn main() {
    // torch-sys passes the path of its libtorch to dependent packages.
    let lib = PathBuf::from(std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names libtorch's lib folder"));
    let include = lib.with_file_name("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        // NDEBUG must be defined as in the libtorch build, because it changes the layout of some classes.
        .define("NDEBUG", None)
        // The debug information of thousands of libtorch headers is large and unused.
        .debug(false)
        .flag_if_supported("-Wno-unused-parameter")
        .file("src/torch/bindings.cpp")
        .file("src/torch/terminate.cpp")
        // Used by tests. The linker omits this file from programs that do not use it.
        .file("src/kernels/meta_shapes.cpp")
        .compile("lambert_torch_shim");
    // For tests: compiles the GPU kernels as C++, with the rounding of the GPU.
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flag("-ffp-contract=off")
        .flag_if_supported("-U_FORTIFY_SOURCE")
        .flag_if_supported("-Wno-unknown-pragmas")
        .file("src/kernels/cuda/emulator.cpp")
        .compile("lambert_emulator");
    println!("cargo:rerun-if-changed=src/kernels/cuda");
    println!("cargo:rerun-if-changed=src/torch/bindings.cpp");
    println!("cargo:rerun-if-changed=src/torch/shim.cpp");
    println!("cargo:rerun-if-changed=src/torch/gpu.cpp");
    println!("cargo:rerun-if-changed=src/torch/attention.cpp");
    println!("cargo:rerun-if-changed=src/torch/operation.cpp");
    println!("cargo:rerun-if-changed=src/torch/terminate.cpp");
    println!("cargo:rerun-if-changed=src/torch/caught.h");
    println!("cargo:rerun-if-changed=src/kernels/meta_shapes.cpp");
    let version = std::fs::read_to_string(include.join("torch/headeronly/version.h")).unwrap_or_default();
    let part =
        |name: &str| version.lines().find_map(|line| line.strip_prefix(&format!("#define TORCH_VERSION_{name} ")));
    let parts = ["MAJOR", "MINOR", "PATCH"].map(|name| part(name).unwrap_or("0").trim().to_owned());
    println!("cargo:rustc-env=LAMBERT_LIBTORCH_VERSION={}", parts.join("."));
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
    // The dynamic loader searches beside the program first, where a copy on a cluster has libtorch. Then the loader
    // searches the libtorch folder on the build machine.
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib:$ORIGIN:{}", lib.display());
}
