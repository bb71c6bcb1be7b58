#!/bin/sh
# Serves runs with `lambert watch`, and prints the time until all their steps are read, the memory and the sizes of answers.
#
#   sh memory.sh LAMBERT STEPS RUN...    each RUN has STEPS steps
set -eu

lambert=$1
steps=$2
shift 2
printed=$(mktemp)
"$lambert" watch "$@" >"$printed" &
watch=$!
trap 'kill $watch; rm -f "$printed"' EXIT
until [ -s "$printed" ]; do sleep 0.1; done
data=$(head -n 1 "$printed" | sed 's|/?|/data?|')
count() {
    curl -s "$data" | python3 -c '
import json, sys
runs = json.load(sys.stdin)["runs"]
steps = [((run.get("series") or {}).get("columns") or {}).get("step") or [0] for run in runs]
print(sum(step[-1] == int(sys.argv[1]) for step in steps))' "$steps"
}
start=$(date +%s)
until [ "$(count)" = $# ]; do sleep 2; done
echo "$# runs read after $(($(date +%s) - start)) s"
grep -E 'VmHWM' /proc/$watch/status
echo "first answer: $(curl -s -H 'Accept-Encoding: gzip' "$data" | wc -c) bytes with gzip"
revision=$(curl -s "$data" | python3 -c 'import json, sys; print(json.load(sys.stdin)["revision"])')
sleep 8
echo "refresh without changes: $(curl -s -H 'Accept-Encoding: gzip' "$data&since=$revision" | wc -c) bytes with gzip"
