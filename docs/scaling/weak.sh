#!/bin/sh
# Weak scaling on one host with two processors: two concurrent runs of one rank compared with two ranks, for lambert and for
# torch's DistributedDataParallel over gloo. Prints a line per round: seconds per step of each, and both efficiencies.
#
#   docs/scaling/weak.sh FOLDER [ROUNDS] [PYTHON]      lambert is target/release/lambert; PYTHON has torch
set -eu

folder=$1 rounds=${2:-7} python=${3:-python3}
here=$(cd "$(dirname "$0")" && pwd)
lambert=$here/../../target/release/lambert
mkdir -p "$folder"
cd "$folder"

[ -d data ] || {
    "$lambert" generate --documents 2000 --output corpus.txt >/dev/null
    "$lambert" vocab --input corpus.txt --size 1000 --output vocab.txt 2>/dev/null
    pieces=$(wc -l < vocab.txt)
    seq "$pieces" 30521 | sed 's/.*/[unused&]/' >> vocab.txt
    cat > prep.toml <<TOML
[[source]]
path = "corpus.txt"
documents = "blank-line"
[output]
url = "data"
[vocabulary]
file = "vocab.txt"
[samples]
sequence_length = 128
pair = "none"
packing = "full-sentences"
short_sequence_probability = 0.0
TOML
    "$lambert" prep --config prep.toml >/dev/null 2>&1
}
cat > run.toml <<TOML
[objective]
pair = "none"
[[stage]]
name = "one"
data = "data/train"
steps = 4
global_batch = 8
micro_batch_tokens = 256
learning_rate = 1e-4
[checkpoint]
every_minutes = 0
[device]
kind = "cpu"
TOML

# The median of the steps after the first, of a run of RANKS ranks: step NAME RANKS
step() {
    rm -rf "$1"
    "$lambert" run --config run.toml --run "$1" --json --ranks "$2" --set "stage.0.global_batch=$((8 * $2))" 2>/dev/null |
        "$python" -c '
import json, statistics, sys
records = [json.loads(line) for line in sys.stdin]
print("%.3f" % statistics.median([record["seconds"] for record in records if record.get("step", 0) > 1 and "tokens" in record]))' > "$1.seconds"
    rm -rf "$1"
}
mean() { "$python" -c 'import sys; print("%.3f" % (sum(map(float, sys.argv[1:])) / (len(sys.argv) - 1)))' "$@"; }
ratio() { "$python" -c 'import sys; print("%.3f" % (float(sys.argv[1]) / float(sys.argv[2])))' "$@"; }

echo "round,lambert_alone,lambert_two,lambert_efficiency,ddp_alone,ddp_two,ddp_efficiency"
for round in $(seq "$rounds"); do
    step first 1 & step second 1; wait
    alone=$(mean "$(cat first.seconds)" "$(cat second.seconds)")
    step both 2
    two=$(cat both.seconds)
    RANK=0 WORLD_SIZE=1 "$python" "$here/ddp.py" > first.ddp & RANK=0 WORLD_SIZE=1 "$python" "$here/ddp.py" > second.ddp; wait
    ddp_alone=$(mean "$(cat first.ddp)" "$(cat second.ddp)")
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=29531
    RANK=1 WORLD_SIZE=2 "$python" "$here/ddp.py" & RANK=0 WORLD_SIZE=2 "$python" "$here/ddp.py" > both.ddp; wait
    ddp_two=$(cat both.ddp)
    echo "$round,$alone,$two,$(ratio "$alone" "$two"),$ddp_alone,$ddp_two,$(ratio "$ddp_alone" "$ddp_two")"
done
