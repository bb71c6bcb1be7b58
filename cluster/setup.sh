#!/bin/sh
# Installs what this machine lacks to build, run and test lambert. The script is idempotent: a second run needs no network
# and changes nothing. All Makefile targets that build or test call this script.
#
#   Open MPI, libclang   Debian packages, unless mpicc (any MPI) and libclang are there
#   libtorch, CPU        a folder in the per-user cache, unless LIBTORCH names one
#   .cargo/config.toml   tells cargo where that folder is (git ignores the file)
#
# --cuda is for a machine with GPUs but without the Python package torch. With this option the script also fetches the CUDA
# half of libtorch and NVIDIA's libraries to another folder of the cache (download 2.3 GB, installed 2.8 GB). The machine
# must already have the NVIDIA driver, version 580 or later.
set -eu

TORCH=2.11.0
TORCH_SHA256=7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a
CUPTI=13.0.85
CUDART=13.0.96
top=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lambert

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
# bindgen reads mpi.h at build time and needs libclang. It searches for libclang in these folders. (libclang-cpp is another
# library.)
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
if [ -n "${1:-}" ] || { [ -z "${LIBTORCH:-}" ] && [ ! -f "$cache/libtorch-$TORCH-cpu/build-version" ]; }; then
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

# 2. libtorch: the parts of the published wheels that CPU builds and runs need, in one folder.
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
        torch=$(wheel torch $TORCH $TORCH_SHA256 manylinux_2_28_x86_64)
        cupti=$(wheel nvidia-cuda-cupti $CUPTI 4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8 manylinux_2_25_x86_64)
        cudart=$(wheel nvidia-cuda-runtime $CUDART 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548 manylinux_2_17_x86_64)
        mkdir -p "$work/libtorch/lib"
        unzip -q "$torch" 'torch/include/*' -d "$work"
        mv "$work/torch/include" "$work/libtorch/include"
        for lib in libtorch_cpu.so libc10.so libgomp.so.1; do
            unzip -q -j "$torch" "torch/lib/$lib" -d "$work/libtorch/lib"
        done
        # libtorch_cpu.so is linked to these two libraries. Without a GPU it calls neither.
        unzip -q -j "$cupti" '*/libcupti.so.13' -d "$work/libtorch/lib"
        unzip -q -j "$cudart" '*/libcudart.so.13' -d "$work/libtorch/lib"
        # torch-sys links a library named `torch`. Here that library only refers to torch_cpu.
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

# 3. Configuration of plain cargo commands.
config="# Written by cluster/setup.sh.
[env]
LIBTORCH = \"$LIBTORCH\""
mkdir -p "$top/.cargo"
[ "$(cat "$top/.cargo/config.toml" 2>/dev/null)" = "$config" ] || echo "$config" > "$top/.cargo/config.toml"

# 4. GPU libraries, in the folders in which the wheels' libraries search for each other.
cuda=$cache/libtorch-$TORCH-cuda
if [ "${1:-}" = --cuda ] && [ ! -f "$cuda/torch/version.py" ]; then
    say "fetching the CUDA half of libtorch $TORCH (2.3 GB, once for this user) to $cuda"
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/cuda"
    torch=$(wheel torch $TORCH $TORCH_SHA256 manylinux_2_28_x86_64)
    for file in version.py lib/libtorch_cuda.so lib/libc10_cuda.so lib/libtorch_nvshmem.so lib/libcaffe2_nvrtc.so; do
        unzip -q "$torch" "torch/$file" -d "$work/cuda"
    done
    rm "$torch"
    while read -r name version tag sum; do
        part=$(wheel "$name" "$version" "$sum" "$tag")
        unzip -q "$part" 'nvidia/*/lib/*' -d "$work/cuda"
        rm "$part"
    done <<'WHEELS'
nvidia-cublas 13.1.0.3 manylinux_2_27_x86_64 ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171
nvidia-cuda-runtime 13.0.96 manylinux_2_17_x86_64 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-nvrtc 13.0.88 manylinux2010_x86_64 ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
nvidia-cufft 12.0.0.61 manylinux2014_x86_64 6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3
nvidia-cufile 1.15.1.6 manylinux2014_x86_64 08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44
nvidia-curand 10.4.0.35 manylinux_2_27_x86_64 1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc
nvidia-cusparse 12.6.3.3 manylinux2014_x86_64 2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b
nvidia-nvjitlink 13.0.88 manylinux2010_x86_64 13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b
nvidia-cudnn-cu13 9.19.0.56 manylinux_2_27_x86_64 d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf
nvidia-cusparselt-cu13 0.8.0 manylinux2014_x86_64 25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd
nvidia-nccl-cu13 2.28.9 manylinux_2_18_x86_64 e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42
nvidia-nvshmem-cu13 3.4.5 manylinux2014_x86_64 290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80
WHEELS
    rm -rf "$cuda"
    mv "$work/cuda" "$cuda"   # last: a folder of this name is whole
    say "the CUDA half of libtorch $TORCH is ready"
fi
