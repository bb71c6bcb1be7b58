#!/bin/sh
# GPU tests. The machine needs a GPU driver and a python3 with torch 2.11.0 for CUDA. The script builds nothing but the
# profiler. It needs only the folder tests/gpu and the archive that tests/gpu/pack.sh creates.
#
#   tests/gpu/run.sh [--packed ARCHIVE] [--output FOLDER] [PART...]
#
# Parts. By default all of them run, in this order:
#   points       kernels, golden steps, snapshots
#   resume       a kill leaves the result unchanged
#   two          two ranks on one GPU over MPI
#   nccl         NCCL with one rank, with a GPU that is listed twice, and with two ranks on one GPU if NCCL permits it
#   base, large  speed of BERT-base and BERT-large at 128 and 512 tokens
#   peers        the same steps by transformers, eager and compiled; needs base or large in the same call
#   families     speed of the base shape of each other family at 128 tokens
#   objectives   speed and memory of replaced-token detection, span boundaries, a teacher, and of the optimizer Muon
#   segments     speed of BERT-large at 128 tokens with and without expandable segments of the CUDA allocator
#   sanitizer    the kernels under memcheck and racecheck of compute-sanitizer
#   small        speed of a small model
#   probe        times of single operations by torch
#   profile      GPU time of BERT-large at 128 tokens by kernel; needs g++ and the CUDA headers
# QUICK (any value) leaves out the measurement with padding, and transformers on other samples than full128. LIMIT (default 480) is
# the longest time of a part, seconds.
# Prints a table at the end. Writes OUTPUT/points.json, and all logs to OUTPUT/logs.tar.gz. Exits with 1 if a point fails.
set -eu
packed=.gpu/packed.tar.xz; output=${TMPDIR:-/tmp}/lambert-gpu
while [ $# -gt 0 ]; do
    case $1 in
        --packed) packed=$2; shift 2 ;;
        --output) output=$2; shift 2 ;;
        -*) echo "usage: $0 [--packed ARCHIVE] [--output FOLDER] [PART...]" >&2; exit 2 ;;
        *) break ;;
    esac
done
parts="points resume two nccl base large peers families objectives segments sanitizer small probe profile"
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $parts
here=$(cd "$(dirname "$0")" && pwd)
limit=${LIMIT:-480}
mkdir -p "$output"
output=$(cd "$output" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/packed"
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$packed" "$work/packed"
archive=$(realpath "$packed"); packed=$work/packed
results=$output/points.jsonl
: > "$results"

say() { printf '\n== %s\n' "$*"; }
# point NAME PASSED FIGURE: records a result.
point() {
    printf '%s: %s (%s)\n' "$1" "$3" "$2"
    python3 -c 'import json, sys; print(json.dumps(dict(zip(["point", "passed", "figure"], sys.argv[1:]))))' "$@" >> "$results"
}

libtorch=${LAMBERT_LIBTORCH:-$(python3 -c "import os, torch; print(os.path.join(os.path.dirname(torch.__file__), \"lib\"))" 2>/dev/null)} || {
    echo "$0: python3 has no torch 2.11.0 for CUDA; install it, or set LAMBERT_LIBTORCH to the folder of its libraries" >&2
    exit 2
}
export LAMBERT_LIBTORCH="$libtorch"
export LD_LIBRARY_PATH="$libtorch:$packed/openmpi/lib:${LD_LIBRARY_PATH:-}"
export PATH="$packed:$packed/openmpi/bin:$PATH" OPAL_PREFIX="$packed/openmpi"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv || true

# dataset NAME LENGTH DOCUMENTS: prepares a dataset of generated text. Its samples have at most LENGTH tokens. With DOCUMENTS =
# long, nearly all have LENGTH tokens, as those of books. With short, their lengths vary.
dataset() {
    [ -e "$work/vocab.txt" ] || {
        lambert generate --documents 20000 --seed 1 --output "$work/short.txt" 2>/dev/null
        awk 'NF || ++blank % 20 == 0' "$work/short.txt" > "$work/long.txt"
        lambert vocab --size 8000 --output "$work/vocab.txt" --input "$work/short.txt" 2>/dev/null >&2
        # The vocabulary gets the size of BERT's vocabulary, because the size determines the time of the logits.
        pieces=$(wc -l < "$work/vocab.txt")
        seq "$pieces" 30521 | sed 's/^/unused-/' >> "$work/vocab.txt"
    }
    cat > "$work/$1.toml" <<TOML
[[source]]
path = "$work/$3.txt"
format = "text"
documents = "blank-line"
[output]
url = "$work/$1"
shards = 4
[vocabulary]
file = "$work/vocab.txt"
[samples]
sequence_length = $2
short_sequence_probability = 0.0
TOML
    lambert prep --config "$work/$1.toml" > "$output/prep-$1.log" 2>&1 || { tail -n 5 "$output/prep-$1.log"; return 1; }
}

# configuration NAME RANKS: writes the configuration of a small model.
configuration() {
    cat > "$work/$1.toml" <<TOML
[model]
layers = 4
hidden = 256
heads = 4
intermediate = 1024
positions = 128
precision = "bf16"
[[stage]]
name = "one"
data = "$work/d128/train"
steps = 400
global_batch = 64
micro_batch_tokens = 4096
learning_rate = 1e-3
[checkpoint]
every_steps = 50
keep = 100
[device]
kind = "cuda"
share = true
deterministic = true
[cluster]
ranks = $2
TOML
}

# step RUN: prints the newest step of a run.
step() {
    lambert status "$1" --json 2>/dev/null |
        python3 -c 'import json, sys; print((json.load(sys.stdin).get("status") or {}).get("step") or 0)' 2>/dev/null || echo 0
}

points() {
    say "The card beside the host"
    if timeout "$limit" gpu-tests --nocapture --test-threads 1 > "$output/points.log" 2>&1; then passed=passed; else passed=FAILED; fi
    cat "$output/points.log"
    grep -q SKIPPED "$output/points.log" && passed=FAILED
    sed -n 's/^.*POINT \([^:]*\): \(.*\)/\1\t\2/p' "$output/points.log" | while IFS="$(printf '\t')" read -r name figure; do
        point "$name" "$passed" "$figure"
    done
    point "card beside host" "$passed" "$(grep 'test result' "$output/points.log" || echo none)"
}

resume() {
    say "A run that is killed twice ends with the bits of one that was not"
    dataset d128 128 short
    configuration undisturbed 1
    timeout "$limit" lambert run --config "$work/undisturbed.toml" --run "$work/undisturbed" > "$output/undisturbed.log" 2>&1 || true
    timeout "$limit" lambert run --config "$work/undisturbed.toml" --run "$work/killed" > "$output/killed.log" 2>&1 &
    run=$!
    for reached in 80 220; do
        until [ "$(step "$work/killed")" -ge "$reached" ]; do
            kill -0 "$run" 2>/dev/null || break
            sleep 0.2
        done
        python3 "$here/kill_ranks.py" "$work/killed"
        sleep 3
    done
    wait "$run" || true
    sums() {
        newest=$(find "$1/checkpoints" -mindepth 1 -maxdepth 1 -name 'step-000000400*' | head -n 1)
        (cd "$newest" && sha256sum -- *.safetensors)
    }
    restarts=$(grep -c 'restarting all workers' "$output/killed.log" || true)
    if [ "$(sums "$work/undisturbed")" = "$(sums "$work/killed")" ]; then bits=equal; else bits=different; fi
    if [ "$restarts" -ge 1 ] && [ $bits = equal ]; then passed=passed; else passed=FAILED; fi
    point "kill and resume, deterministic" "$passed" "$restarts restarts, $bits bits"
    monitored=$(lambert status "$work/undisturbed" --json | python3 -c '
import json, sys
gpu = json.load(sys.stdin)["status"]["ranks"][0].get("gpu") or {}
sample = gpu.get("sample", gpu)
good = all(key in sample for key in ["utilization", "memory_used", "memory_total", "power", "temperature"])
print("passed" if good else "FAILED", json.dumps(gpu))' 2>&1) || true
    point "values of NVML" "${monitored%% *}" "${monitored#* }"
    # The GPU computes forward and backward passes during most of a step.
    phases=$(lambert metrics "$work/undisturbed" --format jsonl | python3 -c '
import json, statistics, sys
steps = [step for step in map(json.loads, sys.stdin) if step.get("seconds")][50:]
share = lambda key: statistics.median(step[key] / step["seconds"] for step in steps)
keys = ["data_wait", "forward_backward", "communication", "optimizer"]
print("passed" if 0.5 < share("forward_backward") < 1 else "FAILED", ", ".join("%s %.1f %%" % (key, 100 * share(key)) for key in keys))' 2>&1) || true
    point "phases of a step" "${phases%% *}" "${phases#* }"
}

two() {
    say "Two ranks on one card, over MPI"
    [ -e "$work/d128" ] || dataset d128 128 short
    configuration two 2
    if timeout "$limit" lambert run --config "$work/two.toml" --run "$work/two" --set stage.0.steps=100 \
        --set cluster.all_reduce.backend=mpi > "$output/two.log" 2>&1; then
        point "two ranks over MPI" passed "$(lambert status "$work/two" 2>/dev/null | head -n 2 | tr '\n' ' ')"
        point "sum by pinned memory and MPI" passed "$(rate "$work/two" 2)"
    else
        tail -n 20 "$output/two.log"
        point "two ranks over MPI" FAILED "see two.log"
    fi
}

# gradients RUN: prints the size of the gradients of a run, bytes. It equals the size of the weights in a checkpoint.
gradients() {
    find "$1/checkpoints" -name model.safetensors -exec wc -c {} + | awk '$2 != "total" { bytes = $1 } END { print bytes }'
}

# rate RUN RANKS: prints the duration and the bandwidth of the all-reduce.
rate() {
    python3 "$here/records.py" rate "$1" "$(gradients "$1")" "$2" |
        awk -v bytes="$(gradients "$1")" '{ printf "%.0f MB in %s s at best, bus %s GB/s\n", bytes / 1e6, $1, $2 }'
}

# Prints the number of shared memory files of NCCL.
shared_files() { find /dev/shm -maxdepth 1 -name 'nccl-*' 2>/dev/null | wc -l; }

nccl() {
    say "Sums by NCCL"
    [ -e "$work/d128" ] || dataset d128 128 short
    configuration one 1
    timeout "$limit" lambert run --config "$work/one.toml" --run "$work/alone" --set stage.0.steps=100 > "$output/alone.log" 2>&1 || true
    timeout "$limit" lambert run --config "$work/one.toml" --run "$work/one" --set stage.0.steps=100 --set cluster.all_reduce.backend=nccl \
        > "$output/one.log" 2>&1 || true
    cat "$work/one/nccl/attempt-0001.json" 2>/dev/null || tail -n 20 "$output/one.log"
    apart=$(python3 "$here/records.py" apart "$work/alone" "$work/one" 2>&1) || true
    # With one rank, the all-reduce must return the gradients of this rank unchanged.
    if [ "$apart" = "0.0e+00" ]; then passed=passed; else passed=FAILED; fi
    point "a world of one by NCCL" "$passed" "losses apart from those without: $apart"

    configuration twice 2
    code=0
    timeout "$limit" lambert run --config "$work/twice.toml" --run "$work/twice" --set cluster.all_reduce.backend=nccl > "$output/twice.log" 2>&1 || code=$?
    if [ "$code" = 2 ] && grep -q 'ranks 0 and 1 share GPU' "$output/twice.log"; then passed=passed; else passed=FAILED; fi
    point "a card named twice" "$passed" "exit code $code: $(grep -o 'ranks 0 and 1 share GPU.*' "$output/twice.log" | head -n 1)"
    two_by_nccl
}

# With different values of NCCL_HOSTID, NCCL treats two ranks as if they were on two hosts. If NCCL finds that both have the same
# GPU (ncclInvalidUsage), the part reports the error and passes.
two_by_nccl() {
    mkdir -p "$work/apart"
    cp "$packed/lambert" "$work/apart/lambert"
    cat > "$work/apart/lambert-worker" <<SH
#!/bin/sh
NCCL_HOSTID=rank-\$OMPI_COMM_WORLD_RANK exec "$packed/lambert-worker" "\$@"
SH
    chmod +x "$work/apart/lambert-worker"
    set -- --config "$work/twice.toml" --set cluster.all_reduce.backend=nccl --set cluster.all_reduce.overlap=false --set cluster.limits.stall_seconds=20
    if ! timeout "$limit" "$work/apart/lambert" run --run "$work/apart-run" "$@" --set stage.0.steps=100 --set cluster.restart.limit=0 \
        > "$output/apart.log" 2>&1; then
        refusal=$(grep -o 'NCCL error.*\|deadline.*' "$output/apart.log" | head -n 1)
        case $refusal in *"NCCL error 5"* | *"Duplicate GPU"*) passed=passed ;; *) passed=FAILED ;; esac
        point "two ranks on one card by NCCL" "$passed" "NCCL does not: $refusal"
        return
    fi
    cat "$work/apart-run/nccl/attempt-0001.json" || true
    [ -e "$work/two/metrics" ] || two
    apart=$(python3 "$here/records.py" apart "$work/two" "$work/apart-run" 2>&1) || true
    if awk -v apart="$apart" 'BEGIN { exit !(apart + 0 < 1e-4 && apart ~ /e/) }'; then passed=passed; else passed=FAILED; fi
    point "two ranks on one card by NCCL" "$passed" "losses apart from those over MPI: $apart (at most 1e-4)"
    megabytes=$(($(gradients "$work/apart-run") / 1000000))
    torch=$(python3 "$here/reduce.py" "$megabytes" 2> "$output/reduce.log" || tail -n 1 "$output/reduce.log")
    point "sum by NCCL" passed "$(rate "$work/apart-run" 2); torch $torch (s, GB/s)"
    before=$(shared_files)
    timeout "$limit" "$work/apart/lambert" run --run "$work/killed-run" "$@" > "$output/killed-rank.log" 2>&1 &
    run=$!
    until [ "$(step "$work/killed-run")" -ge 80 ]; do
        kill -0 "$run" 2>/dev/null || break
        sleep 0.2
    done
    python3 "$here/kill_ranks.py" "$work/killed-run" last
    begin=$(date +%s)
    until grep -q 'recovered to step' "$output/killed-rank.log"; do
        kill -0 "$run" 2>/dev/null || break
        sleep 0.2
    done
    seconds=$(($(date +%s) - begin))
    if wait "$run" && [ "$(shared_files)" -le "$before" ] && [ "$seconds" -le 30 ]; then passed=passed; else passed=FAILED; fi
    point "a rank killed while NCCL sums" "$passed" "trained again after $seconds s, $(shared_files) files left in /dev/shm ($before before)"
}

# speed_of SHAPE DATA SAMPLES TOKENS SHARE TIMES [UNPADDED]: measures the speed of a training step.
speed_of() {
    if [ "$1" = large ]; then size="layers = 24
hidden = 1024
heads = 16
intermediate = 4096"; else size="layers = 12
hidden = 768
heads = 12
intermediate = 3072"; fi
    cat > "$work/$1-$2.toml" <<TOML
[model]
$size
positions = 512
precision = "bf16"
pad_vocabulary_to = 64
[[stage]]
name = "one"
data = "$work/$2/train"
steps = 1000
global_batch = $3
micro_batch_tokens = $4
learning_rate = 1e-4
[device]
kind = "cuda"
TOML
    [ -z "${7:-}" ] || echo "unpadded = \"$7\"" >> "$work/$1-$2.toml"
    if ! timeout "$limit" lambert-worker bench --config "$work/$1-$2.toml" --steps 5 --json > "$output/$1-$2.json" 2> "$output/$1-$2.log"; then
        tail -n 5 "$output/$1-$2.log"
        point "BERT-$1, $2 ${7:-}" FAILED "see $1-$2.log"
        return
    fi
    figures=$(python3 - "$output/$1-$2.json" "$5" <<'PYTHON'
import json, sys
m, aim = json.load(open(sys.argv[1])), float(sys.argv[2])
good = m["utilization"] >= aim and m["data_wait"] < 0.01 and m["peak_memory"] <= (m["needed_memory"] or 2**60)
print("passed" if good else "FAILED", "%.0f samples/s, %.0f tokens/s without padding, %.1f %% padding, %.0f TFLOP/s, %.1f %% of %.0f (aim %.0f), %.1f %% of the data sheet, data wait %.2f %%, optimizer %.1f %%, enqueued after %.0f %%, %.2f GiB (%.2f by formula)" % (
    m["samples_per_second"], m["tokens"] / m["seconds"][1], 100 * m["padding"], m["teraflops"], 100 * m["utilization"], m["peak_teraflops"], 100 * aim,
    100 * m["teraflops"] / (m["datasheet_teraflops"] or float("inf")),
    100 * m["data_wait"], 100 * m["optimizer"], 100 * m["enqueued"], m["peak_memory"] / 2**30,
    (m["needed_memory"] or 0) / 2**30))
PYTHON
    )
    point "BERT-$1, $2 ${7:-}" "${figures%% *}" "${figures#* }"
    [ -n "${7:-}" ] || measured="$measured $1:$2:$6"
}
measured=

peers() {
    say "transformers on the same samples"
    for case in $measured; do
        case $case in
            *:full128:*) ;;
            *) [ -n "${QUICK:-}" ] && continue ;;
        esac
        beside_transformers "$(echo "$case" | cut -d: -f1)" "$(echo "$case" | cut -d: -f2)" "$(echo "$case" | cut -d: -f3)"
    done
}

# beside_transformers SHAPE LENGTH AIM: runs transformers on the same samples. AIM is the minimum ratio of the speeds.
beside_transformers() {
    if ! python3 -c 'import transformers' 2>/dev/null; then
        echo "SKIPPED: python3 has no transformers"
        return
    fi
    if ! timeout "$limit" lambert-worker bench --config "$work/$1-$2.toml" --steps 3 --batches "$work/batches.json" 2>> "$output/$1-$2.log"; then
        point "BERT-$1, $2, transformers" FAILED "see $1-$2.log"
        return
    fi
    if ! timeout "$limit" python3 "$here/peers.py" "$work/batches.json" > "$output/$1-$2-peers.jsonl" 2> "$output/$1-$2-peers.log"; then
        tail -n 5 "$output/$1-$2-peers.log"
    fi
    ratios=$(python3 - "$output/$1-$2.json" "$output/$1-$2-peers.jsonl" "$3" <<'PYTHON'
import json, sys
own, aim = json.load(open(sys.argv[1]))["samples_per_second"], float(sys.argv[3])
peers = {p["name"]: p["samples_per_second"] for p in map(json.loads, open(sys.argv[2]))}
good = "compiled" in peers and own >= aim * peers["compiled"]
said = ["%s %.0f samples/s, lambert %.2f times" % (name, rate, own / rate) for name, rate in peers.items()]
print("passed" if good else "FAILED", "; ".join(said or ["nothing"]), "(aim %.1f times compiled)" % aim)
PYTHON
    )
    point "BERT-$1, $2, transformers" "${ratios%% *}" "${ratios#* }"
}

datasets() {
    [ -e "$work/d128" ] || dataset d128 128 short
    [ -e "$work/full128" ] || dataset full128 128 long
    [ -e "$work/full512" ] || dataset full512 512 long
}

# Arguments of speed_of: SHAPE, LENGTH, SAMPLES per step, TOKENS per micro-batch, SHARE of the peak that must be reached, and
# TIMES, the minimum ratio of the speed to that of transformers.
base() {
    say "BERT-base, bf16"
    datasets
    speed_of base full128 2048 65536 0.45 1.2
    speed_of base full512 512 65536 0.45 1.2
}

large() {
    say "BERT-large, bf16"
    datasets
    speed_of large full128 1024 32768 0.50 1.2
    speed_of large full512 256 32768 0.45 1.2
    [ -n "${QUICK:-}" ] || speed_of large d128 1024 32768 0.45 1.2 never
    speed_of large d128 1024 32768 0.45 1.2
}

# speed_of_family FAMILY TOKENS [NAME TOML [OPTION ...]]: measures a step of the base shape of a family. NAME is the name of the
# point, TOML are keys of [objective] and tables, and an OPTION is one of lambert-worker bench.
speed_of_family() {
    family=$1
    tokens=$2
    name=${3:-$1}
    text=${4:-}
    shift $(($# < 4 ? $# : 4))
    cat > "$work/$name.toml" <<TOML
[model]
family = "$family"
precision = "bf16"
pad_vocabulary_to = 64
[[stage]]
name = "one"
data = "$work/full128/train"
steps = 1000
global_batch = 2048
micro_batch_tokens = $tokens
learning_rate = 1e-4
[device]
kind = "${DEVICE:-cuda}"
[objective]
pair = "none"
$text
TOML
    if ! timeout "$limit" lambert-worker bench --config "$work/$name.toml" --steps 3 --json "$@" > "$output/$name.json" 2> "$output/$name.log"; then
        tail -n 5 "$output/$name.log"
        point "$name, base shape, 128 tokens" FAILED "see $name.log"
        return
    fi
    figures=$(python3 - "$output/$name.json" <<'PYTHON'
import json, sys
m = json.load(open(sys.argv[1]))
# The formula of a generator of ELECTRA is 0.1 % below the memory.
good = m["peak_memory"] <= 1.005 * (m["needed_memory"] or 2**60)
print("passed" if good else "FAILED", "%.0f samples/s, %.0f TFLOP/s, %.1f %% of %.0f, enqueued after %.0f %%, optimizer %.1f %%, %.2f GiB (%.2f by formula)" % (
    m["samples_per_second"], m["teraflops"], 100 * m["utilization"], m["peak_teraflops"], 100 * m["enqueued"], 100 * m["optimizer"],
    m["peak_memory"] / 2**30, (m["needed_memory"] or 0) / 2**30))
PYTHON
    )
    point "$name, base shape, 128 tokens" "${figures%% *}" "${figures#* }"
}

families() {
    say "Base shapes of the other families, bf16"
    datasets
    for family in roberta albert electra distilbert modernbert; do speed_of_family $family 65536; done
    # Attention weights with relative positions need more memory.
    speed_of_family deberta-v2 32768
}

objectives() {
    say "Objectives and Muon, base shapes, bf16"
    datasets
    speed_of_family electra 65536 replaced-tokens "[objective.replaced_tokens]"
    speed_of_family bert 65536 span-boundary "mask_unit = \"span\"
span_boundary_weight = 1.0"
    speed_of_family bert 65536 muon "[optimizer]
kind = \"muon\""
    none=$(printf '%064d' 0)
    cat > "$work/facts.toml" <<TOML
weights_sha256 = "$none"
config_sha256 = "$none"
vocabulary_sha256 = "$none"
[model]
family = "bert"
TOML
    speed_of_family distilbert 65536 teacher "[objective.teacher]
from = \"hf:none\"" --teacher "$work/facts.toml"
}

segments() {
    say "Expandable segments"
    datasets
    for setting in False True; do
        export PYTORCH_ALLOC_CONF=expandable_segments:$setting
        say "$PYTORCH_ALLOC_CONF"
        speed_of large d128 1024 32768 0.45 1.2 auto
        unset PYTORCH_ALLOC_CONF
    done
}

sanitizer() {
    say "compute-sanitizer"
    tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    [ -x "$tool" ] || { echo "SKIPPED: there is no compute-sanitizer"; return; }
    # racecheck fails with an internal error in the gradient tests.
    for case in memcheck:match_the_host racecheck:updates_match racecheck:dropout_matches racecheck:normalizations_match; do
        check=${case%:*}; tests=${case#*:}; code=0
        timeout "$limit" "$tool" --tool "$check" --kernel-name kernel_substring=lambert_ --error-exitcode 9 \
            gpu-tests --test-threads 1 --nocapture "$tests" > "$output/$check-$tests.log" 2>&1 || code=$?
        if [ $code = 0 ]; then passed=passed; else passed=FAILED; fi
        point "$check, $tests" "$passed" "exit code $code: $(grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$output/$check-$tests.log" | tail -n 1)"
    done
}

# Speed of the model of the other parts, whose steps are short, with and without deterministic algorithms.
small() {
    say "A small model"
    [ -e "$work/d128" ] || dataset d128 128 short
    configuration small 1
    for deterministic in true false; do
        timeout "$limit" lambert-worker bench --config "$work/small.toml" --steps 20 --set device.deterministic=$deterministic \
            > "$output/small-$deterministic.txt" 2>&1 || true
        cat "$output/small-$deterministic.txt"
        point "small model, deterministic = $deterministic" passed "$(grep samples/s "$output/small-$deterministic.txt")"
    done
}

probe() {
    say "Operations of a layer by torch"
    timeout "$limit" python3 "$here/probe.py" 2>&1 | tee "$output/probe.txt"
}

profile() {
    say "GPU time by kernel, BERT-large, 128 tokens"
    [ -e "$work/large-full128.toml" ] || { datasets; speed_of large full128 1024 32768 0.5 1.2; }
    cuda=$libtorch/../../nvidia/cu13
    profiler=$(dirname "$archive")/profile.so
    [ -e "$profiler" ] || {
        profiler=$work/profile.so
        g++ -O2 -shared -fPIC -I "$cuda/include" -I "${CUDA_HOME:-/usr/local/cuda}/include" "$here/profile.cpp" \
            -o "$profiler" "$cuda/lib/libcupti.so.13"
    }
    CUDA_INJECTION64_PATH=$profiler PROFILE_OUTPUT=$output/profile.txt LD_LIBRARY_PATH="$cuda/lib:$LD_LIBRARY_PATH" \
        timeout "$limit" lambert-worker bench --config "$work/large-full128.toml" --steps 3 > "$output/profile.log" 2>&1 || true
    head -n 60 "$output/profile.txt"
}

for part in "$@"; do
    case " $parts " in
        *" $part "*)
            begun=$(date +%s)
            # A part that fails must not hide the results of the others.
            "$part" || point "$part" FAILED "ended with an error"
            echo "($part: $(($(date +%s) - begun)) s)" ;;
        *) echo "no part $part: $parts" >&2; exit 2 ;;
    esac
done
(cd "$output" && tar -czf logs.tar.gz -- *.log *.json *.jsonl *.txt) 2>/dev/null || true

say "All points"
python3 - "$results" "$output/points.json" <<'PYTHON'
import json, sys
points = [json.loads(line) for line in open(sys.argv[1])]
json.dump(points, open(sys.argv[2], "w"), indent=1)
for p in points:
    print("| %-34s | %-6s | %s |" % (p["point"], p["passed"], p["figure"]))
sys.exit(any(p["passed"] != "passed" for p in points) or not points)
PYTHON
