#!/bin/sh
# Collects everything that tests/gpu/run.sh needs in one folder (about 60 MB), for a machine without a build. The folder
# contains Open MPI 5 and the stripped binaries of the two programs and of the test program.
#
#   tests/gpu/pack.sh [FOLDER]    FOLDER (.gpu) is recreated
set -eu
cd "$(dirname "$0")/../.."
folder=${1:-.gpu}
target=${CARGO_TARGET_DIR:-target}

sh tests/setup.sh
cargo build --release --workspace --locked
program=$(cargo test --release --locked --test gpu --no-run --message-format json |
    sed -n 's/.*"name":"gpu".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
rm -rf "$folder"
mkdir -p "$folder"
for name in lambert lambert-worker; do strip -o "$folder/$name" "$target/release/$name"; done
strip -o "$folder/gpu-tests" "$program"
cp -R "${LAMBERT_TEST_OPENMPI5:-${XDG_CACHE_HOME:-$HOME/.cache}/lambert/openmpi-5.0.11}" "$folder/openmpi"
du -sh "$folder" >&2
