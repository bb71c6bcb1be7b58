#!/bin/sh
# Demonstrates a run under a local Slurm: submitted, preempted by another job, requeued, finished. Run it as root, on
# Debian, after `make build`. Everything is removed at the end.
#
#   cluster/slurm-sandbox/demo.sh [FOLDER]     /tmp/lambert-slurm if absent
set -eu

folder=${1:-/tmp/lambert-slurm}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
home=$folder/home
libtorch=${LIBTORCH:-$(sed -n 's/^LIBTORCH = "\(.*\)"$/\1/p' "$root/.cargo/config.toml")}

as_user() { "$folder/as-user" "$@"; }
say() { printf '\n$ %s\n' "$*"; }

trap '"$here/down.sh" "$folder"' EXIT
trap 'exit 1' INT TERM
"$here/up.sh" "$folder"

# Copies that the sandbox's user may read.
mkdir "$home/bin"
cp "$root/target/release/lambert" "$root/target/release/lambert-worker" "$home/bin"
cp -r "$libtorch/lib" "$home/lib"
cat > "$home/prep.toml" <<TOML
[[source]]
path = "corpus.txt"
documents = "blank-line"
[output]
url = "data"
[vocabulary]
file = "vocab.txt"
[samples]
sequence_length = 64
TOML
cat > "$home/run.toml" <<TOML
[model]
layers = 2
hidden = 64
heads = 2
intermediate = 128
positions = 64
[[stage]]
name = "one"
data = "data/train"
steps = 600
global_batch = 32
learning_rate = 5e-3
[cluster]
ranks = 2
[slurm]
nodes = 2
time = "30"
TOML
cd "$home"
as_user bin/lambert generate --documents 1000 --output corpus.txt >/dev/null
as_user bin/lambert vocab --input corpus.txt --size 500 --output vocab.txt 2>/dev/null
as_user bin/lambert prep --config prep.toml >/dev/null 2>&1

say lambert submit --config run.toml --run run
job=$(as_user bin/lambert submit --config run.toml --run run)
echo "$job"
until grep -q '^step 5/' "lambert-$job.log" 2>/dev/null; do sleep 0.2; done
say srun --partition=urgent --nodes=3 --exclusive true
as_user srun --partition=urgent --nodes=3 --exclusive true
until grep -q 'requeuing the job' "lambert-$job.log"; do sleep 0.2; done
say lambert status run
as_user bin/lambert status run
until grep -q '^finished: step' "lambert-$job.log"; do sleep 1; done
say lambert status run
as_user bin/lambert status run
