#!/bin/sh
# Installs what lambert needs on this machine to be built, run and tested, and nothing that is there already.
# Idempotent: a second run needs no network and changes nothing. Called by every target of the Makefile.
#
#   Open MPI, libclang   Debian packages, unless mpicc (any MPI) and libclang are there
#   libtorch, CPU        a folder in the per-user cache, unless LIBTORCH names one
#   .cargo/config.toml   tells cargo where that folder is (git ignores the file)
set -eu

TORCH=2.11.0
CUPTI=13.0.85
CUDART=13.0.96
top=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lambert

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
# Where bindgen, which reads mpi.h at build time, looks for libclang (libclang-cpp is another library).
have_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] || ls /usr/lib/llvm-*/lib/libclang*.so* /usr/lib/*/libclang*.so* \
        /usr/lib64/libclang*.so* /usr/local/lib/libclang*.so* 2>/dev/null | grep -v libclang-cpp | grep -q .
}

[ "$(uname -sm)" = "Linux x86_64" ] || die "this is $(uname -sm); lambert is built on Linux x86_64"
have cargo || die "cargo is missing: install Rust with rustup (rustup.rs), then run this again"

# 1. Packages.
packages=
have cc && have c++ || packages="$packages build-essential"
have mpicc && have mpirun || packages="$packages libopenmpi-dev openmpi-bin"
have_libclang || packages="$packages libclang-dev"
if [ -z "${LIBTORCH:-}" ] && [ ! -f "$cache/libtorch-$TORCH-cpu/build-version" ]; then
    have unzip || packages="$packages unzip"
    have pip || have pip3 || packages="$packages python3-pip"
fi
if [ -n "$packages" ]; then
    have apt-get || die "missing here: $packages (Debian's names). Install what your system calls them, or set
       LIBTORCH (a libtorch $TORCH folder), LIBCLANG_PATH and a PATH with mpicc and mpirun, and run this again"
    say "installing Debian packages:$packages"
    root=; [ "$(id -u)" = 0 ] || { have sudo && root=sudo || die "not root and no sudo: install$packages"; }
    $root apt-get -qq update
    DEBIAN_FRONTEND=noninteractive $root apt-get -qq install -y $packages >/dev/null
fi

# 2. libtorch: the parts of the published wheels that a CPU build and run needs, in one folder.
# NAME VERSION SHA256 WHEEL-TAG
wheel() {
    pip=pip; have pip || pip=pip3
    "$pip" download --quiet --no-deps --only-binary=:all: --python-version 3.11 --platform "$4" \
        --dest "$work" "$1==$2" >&2 || die "could not download $1 $2 with $pip"
    file=$(ls "$work"/"$(echo "$1" | tr - _)"-"$2"-*.whl)
    [ "$(sha256sum "$file" | cut -d' ' -f1)" = "$3" ] || die "$file: sha256 is not $3; delete pip's cache and try again"
    echo "$file"
}
if [ -z "${LIBTORCH:-}" ]; then
    libtorch=$cache/libtorch-$TORCH-cpu
    if [ ! -f "$libtorch/build-version" ]; then
        say "fetching libtorch $TORCH (530 MB, once for this user) to $libtorch"
        mkdir -p "$cache"
        work=$(mktemp -d "$cache/fetch.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        torch=$(wheel torch $TORCH 7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a manylinux_2_28_x86_64)
        cupti=$(wheel nvidia-cuda-cupti $CUPTI 4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8 manylinux_2_25_x86_64)
        cudart=$(wheel nvidia-cuda-runtime $CUDART 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548 manylinux_2_17_x86_64)
        mkdir -p "$work/libtorch/lib"
        unzip -q "$torch" 'torch/include/*' -d "$work"
        mv "$work/torch/include" "$work/libtorch/include"
        for lib in libtorch_cpu.so libc10.so libgomp.so.1; do
            unzip -q -j "$torch" "torch/lib/$lib" -d "$work/libtorch/lib"
        done
        # libtorch_cpu.so names these two, and needs neither without a GPU.
        unzip -q -j "$cupti" '*/libcupti.so.13' -d "$work/libtorch/lib"
        unzip -q -j "$cudart" '*/libcudart.so.13' -d "$work/libtorch/lib"
        # torch-sys links `torch`, which in this library is only a name for torch_cpu.
        echo | cc -shared -o "$work/libtorch/lib/libtorch.so" -x c - -L"$work/libtorch/lib" \
            -Wl,--no-as-needed -ltorch_cpu -Wl,-rpath,'$ORIGIN' -Wl,--allow-shlib-undefined
        echo $TORCH > "$work/libtorch/build-version"
        rm -rf "$libtorch"
        mv "$work/libtorch" "$libtorch"   # last: a folder of this name is whole
        say "libtorch $TORCH is ready"
    fi
    LIBTORCH=$libtorch
fi
[ -d "$LIBTORCH/lib" ] || die "LIBTORCH=$LIBTORCH has no lib folder; it must name a libtorch $TORCH"

# 3. Plain cargo commands then find it too.
config="# Written by cluster/setup.sh.
[env]
LIBTORCH = \"$LIBTORCH\""
mkdir -p "$top/.cargo"
[ "$(cat "$top/.cargo/config.toml" 2>/dev/null)" = "$config" ] || echo "$config" > "$top/.cargo/config.toml"
