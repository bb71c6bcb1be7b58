#!/bin/sh
# Tests NCCL on a cluster: ranks and transports, bandwidth compared with the published bandwidth of the links, losses
# compared with those on one GPU, and recovery time after a rank is killed. The script builds nothing. lambert, lambert-worker
# and the GPU libraries (docs/guides/gpus.md) must be on every host at the same paths.
#
#   tests/gpu/nodes.sh --shared FOLDER --ranks N [--hosts '"a:8", "b:8"'] [--gbits RATE] [--share S]
#
# FOLDER is on a file system of all hosts. Without --hosts, all ranks run on this host or, in a Slurm job, on its nodes.
# --gbits: published total bandwidth of the links of a host, Gbit/s. --share: part of RATE that the all-reduce must reach (0.5).
# Prints a table at the end. Exits with 1 if a point fails.
set -eu
shared=; ranks=; hosts=; gbits=; share=0.5
usage() { sed -n '6,10s/^# *//p' "$0" >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
        --shared) shared=$2; shift 2 ;;
        --ranks) ranks=$2; shift 2 ;;
        --hosts) hosts=$2; shift 2 ;;
        --gbits) gbits=$2; shift 2 ;;
        --share) share=$2; shift 2 ;;
        *) usage ;;
    esac
done
if [ -z "$shared" ] || [ -z "$ranks" ]; then usage; fi
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$shared"
work=$(mktemp -d "$(cd "$shared" && pwd)/lambert-nodes-XXXXXX")
trap 'rm -rf "$work"' EXIT
table=$work/table
: > "$table"
failed=0

say() { printf '\n== %s\n' "$*"; }
# point NAME PASSED FIGURE: adds a row to the table.
point() {
    printf '| %-26s | %-6s | %s |\n' "$1" "$2" "$3" | tee -a "$table"
    [ "$2" = passed ] || failed=1
}

say "A dataset of generated text in $work"
lambert generate --documents 20000 --seed 1 --output "$work/corpus.txt" 2>/dev/null
lambert vocab --size 8000 --output "$work/vocab.txt" --input "$work/corpus.txt" 2>/dev/null
cat > "$work/prep.toml" <<TOML
[[source]]
path = "$work/corpus.txt"
format = "text"
documents = "blank-line"
[output]
url = "$work/data"
[vocabulary]
file = "$work/vocab.txt"
[samples]
sequence_length = 128
TOML
lambert prep --config "$work/prep.toml" > /dev/null 2>&1

# BERT-large. With this vocabulary its gradients have about 1.25 GB: the time of their all-reduce is long compared with that of
# the messages after a step, which `communication` also counts.
cat > "$work/run.toml" <<TOML
[model]
layers = 24
hidden = 1024
heads = 16
intermediate = 4096
positions = 128
dropout = 0.0
[[stage]]
name = "one"
data = "$work/data/train"
steps = 60
global_batch = $((16 * ranks))
micro_batch_tokens = 2048
learning_rate = 1e-4
[checkpoint]
every_steps = 20
[device]
kind = "cuda"
[cluster.all_reduce]
backend = "nccl"
overlap = false
# One bucket has all gradients, so that the bus bandwidth is that of one large all-reduce.
bucket_mb = 2000.0
TOML

# run NAME [ARGUMENT...]: starts a run.
run() {
    name=$1; shift
    lambert run --config "$work/run.toml" --run "$work/$name" "$@" > "$work/$name.log" 2>&1
}
# everywhere NAME [ARGUMENT...]: starts a run on all ranks.
everywhere() {
    name=$1; shift
    run "$name" --ranks "$ranks" --set "cluster.hosts=[$hosts]" "$@"
}
step() {
    lambert status "$1" --json 2>/dev/null |
        python3 -c 'import json, sys; print((json.load(sys.stdin).get("status") or {}).get("step") or 0)' 2>/dev/null || echo 0
}

say "One GPU, then $ranks"
run alone --ranks 1 || { tail -n 20 "$work/alone.log"; point "one card" FAILED "see above"; exit 1; }
if ! everywhere all; then
    tail -n 20 "$work/all.log"
    point "$ranks ranks" FAILED "see above"
    exit 1
fi
python3 - "$work/all/nccl/attempt-0001.json" <<'PYTHON' || true
import json, sys
for own in json.load(open(sys.argv[1])):
    print("rank %d on %s: NCCL %s, %s, from %s; %s" % (own["rank"], own["host"], own["version"], own["transports"], own["library"], " ".join(own["variables"])))
    for warning in own["warnings"]:
        print("  warning:", warning)
PYTHON
facts=$(python3 - "$work/all/nccl/attempt-0001.json" "$ranks" <<'PYTHON'
import json, sys
all = json.load(open(sys.argv[1]))
ways = sorted({own["transports"] or "not known" for own in all})
good = len(all) == int(sys.argv[2]) and not any(own["warnings"] for own in all)
print("passed" if good else "FAILED", len(all), "ranks on", len({own["host"] for own in all}), "hosts:", "; ".join(ways))
PYTHON
) || facts="FAILED no record of them"
point "ranks and transports" "${facts%% *}" "${facts#* }"

apart=$(python3 "$here/records.py" apart "$work/alone" "$work/all" 2>&1) || true
if awk -v apart="$apart" 'BEGIN { exit !(apart + 0 < 1e-4 && apart ~ /e/) }'; then passed=passed; else passed=FAILED; fi
point "losses of one card" "$passed" "apart by $apart at most (1e-4)"

# The settings of real runs: buckets of the default size, summed during the backward pass.
# overlapped NAME LIMIT [ARGUMENT...]: the losses must differ from those of one GPU by at most LIMIT.
overlapped() {
    name=$1; most=$2; shift 2
    everywhere "$name" --set cluster.all_reduce.overlap=true --set cluster.all_reduce.bucket_mb=100.0 "$@" || tail -n 20 "$work/$name.log"
    apart=$(python3 "$here/records.py" apart "$work/alone" "$work/$name" 2>&1) || true
    if awk -v apart="$apart" -v most="$most" 'BEGIN { exit !(apart + 0 < most && apart ~ /e/) }'; then passed=passed; else passed=FAILED; fi
    point "$name" "$passed" "apart by $apart at most ($most)"
}
overlapped "overlapped sums" 1e-4
overlapped "overlapped sums, bf16" 2e-2 --set model.precision=bf16 --set cluster.all_reduce.dtype=bf16

# The gradients are as large as the weights in the newest checkpoint.
bytes=$(find "$work/all/checkpoints" -name model.safetensors -size +1M -exec wc -c {} + | awk '$1 > most && $2 != "total" { most = $1 } END { print most }')
sum=$(python3 "$here/records.py" rate "$work/all" "$bytes" "$ranks")
bus=${sum#* }
if [ -n "$gbits" ]; then
    if awk -v bus="$bus" -v gbits="$gbits" -v share="$share" 'BEGIN { exit !(8 * bus >= share * gbits) }'; then passed=passed; else passed=FAILED; fi
    point "bus bandwidth" "$passed" "$bus GB/s of $(awk -v gbits="$gbits" 'BEGIN { print gbits / 8 }') published (at least $share of it), $bytes bytes in ${sum%% *} s"
else
    point "bus bandwidth" passed "$bus GB/s, $bytes bytes in ${sum%% *} s (nothing to hold it against: --gbits)"
fi

say "A rank is killed"
everywhere killed --set cluster.limits.stall_seconds=30 &
job=$!
until [ "$(step "$work/killed")" -ge 25 ]; do
    kill -0 "$job" 2>/dev/null || break
    sleep 0.2
done
if [ "$(python3 "$here/kill_ranks.py" "$work/killed" last)" = 0 ]; then
    point "a rank killed" FAILED "no rank of the run is on this host"
else
    begin=$(date +%s)
    until grep -q 'recovered to step' "$work/killed.log"; do
        kill -0 "$job" 2>/dev/null || break
        sleep 0.2
    done
    seconds=$(($(date +%s) - begin))
    if wait "$job" && [ "$seconds" -le 50 ]; then passed=passed; else passed=FAILED; fi
    point "a rank killed" "$passed" "noticed after $seconds s (at most 45 of a stall and the pause), then finished"
fi

say "All points"
cat "$table"
exit "$failed"
