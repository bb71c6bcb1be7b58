#!/bin/sh
# Packs everything that tests/gpu/run.sh needs into one archive (below 40 MB), for a machine without a build: Open MPI 5
# and the stripped binaries of the two programs and of the test program.
#
#   tests/gpu/pack.sh [ARCHIVE]    ARCHIVE (.gpu/packed.tar.xz) is replaced
set -eu
cd "$(dirname "$0")/../.."
archive=${1:-.gpu/packed.tar.xz}
target=${CARGO_TARGET_DIR:-target}

sh tests/setup.sh
# The same selection as the tests, so that no dependency is built twice.
program=$(cargo build --release --workspace --locked --tests --message-format json |
    sed -n 's/.*"kind":\["test"\].*"name":"gpu".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in lambert lambert-worker; do strip -o "$work/$name" "$target/release/$name"; done
strip -o "$work/gpu-tests" "$program"
# Programs that compile against Open MPI need its headers and static libraries. Nothing here does.
cp -R "${LAMBERT_TEST_OPENMPI5:-${XDG_CACHE_HOME:-$HOME/.cache}/lambert/openmpi-5.0.11}" "$work/openmpi"
rm -rf "$work/openmpi/include" "$work/openmpi/share/man" "$work/openmpi/share/doc"
find "$work/openmpi" -name '*.a' -delete
mkdir -p "$(dirname "$archive")"
tar -C "$work" -c . | xz -6 -T0 > "$archive"
bytes=$(wc -c < "$archive")
echo "$archive: $((bytes / 1000000)) MB" >&2
[ "$bytes" -lt 40000000 ] || { echo "$0: $archive has $bytes bytes; expected less than 40 MB" >&2; exit 1; }
