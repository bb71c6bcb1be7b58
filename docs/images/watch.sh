#!/bin/sh
# Makes the pictures of docs/guides/watch-page.md: trains the run of run.sh, and photographs the page of `lambert watch`
# in headless Chromium, which tests/setup.sh installs. Call it from the root of the repository, after `make build`:
#
#   sh docs/images/watch.sh [FOLDER] [PROGRAMS]    FOLDER (default: target/picture) has the run, or is made by run.sh
set -eu

folder=${1:-target/picture}
programs=${2:-target/release}
modules=${XDG_CACHE_HOME:-$HOME/.cache}/lambert/browser-playwright-1.49.1-axe-4.10.2
[ -d "$folder/run" ] || sh docs/images/run.sh "$folder" "$programs"

# The page shows the path of the run.
shown=/tmp/lambert-picture
rm -rf $shown "$folder/watch.txt"
mkdir -p $shown
cp -a "$folder/run" $shown/run
"$programs/lambert" watch $shown/run >"$folder/watch.txt" &
watch=$!
trap 'kill $watch; rm -rf $shown' EXIT
until [ -s "$folder/watch.txt" ]; do sleep 0.2; done
images=docs/images
node tests/browser/page.mjs "$modules" "$(head -n 1 "$folder/watch.txt")" \
    "--picture=1200x900:light:$images/watch-light.png" \
    "--picture=1200x900:dark:$images/watch-dark.png" \
    "--picture=400x900:light:$images/watch-narrow.png" >"$folder/watch.json"
