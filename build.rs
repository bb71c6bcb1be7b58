//! Compiles the shim over libtorch's C++ interface, and lets the binaries find libtorch by themselves.

use std::path::PathBuf;

fn main() {
    // torch-sys hands its choice of libtorch on to the packages that depend on it.
    let lib = PathBuf::from(std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names libtorch's lib folder"));
    let include = lib.with_file_name("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        // As libtorch was built: some of its classes have other members without.
        .define("NDEBUG", None)
        // For each of the thousands of headers of libtorch: nobody asks for it.
        .debug(false)
        .flag_if_supported("-Wno-unused-parameter")
        .file("src/torch/shim.cpp")
        .file("src/torch/card.cpp")
        // Of the tests: a program that does not ask for it does not get it.
        .file("src/kernels/meta_shapes.cpp")
        .compile("lambert_torch_shim");
    // Of the tests, too: the kernels of a GPU as C++, rounded as the GPU rounds.
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flag("-ffp-contract=off")
        .flag_if_supported("-U_FORTIFY_SOURCE")
        .file("src/kernels/cuda/emulator.cpp")
        .compile("lambert_emulator");
    println!("cargo:rerun-if-changed=src/kernels/cuda");
    println!("cargo:rerun-if-changed=src/torch/shim.cpp");
    println!("cargo:rerun-if-changed=src/torch/card.cpp");
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
    // First beside the program (a copy on a cluster), then where it was built.
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib:$ORIGIN:{}", lib.display());
}
