#!/bin/sh
# Full depth or stacked under LAMB: docs/stacking's models and samples in batches of 256, 1,000 updates, one warm-up over the first 200 and
# one line down to 0. After a kill the same command resumes and runs only what is missing.
#
#   docs/large-batch/stacking.sh full RATE SEED,SEED [MORE]        in a folder with data/; MORE: arguments of lambert tune
#   docs/large-batch/stacking.sh stacked RATE SEED,SEED [MORE]     2 layers for 600 updates, 4 for 400
set -eu

arm=$1 rate=$2 seeds=$3
shift 3
configs=$(cd "$(dirname "$0")/../stacking" && pwd)
if [ "$arm" = full ]; then
    set -- --set stage.0.steps=1000 --set stage.0.warmup=0.2 "$@"
else
    # The line's rate after 600 of its 1,000 updates, 400 of the 800 that come after the warm-up.
    half=$(awk "BEGIN { print $rate / 2 }")
    set -- --set stage.0.steps=600 --set stage.0.warmup=0.333333333333 --set "stage.0.learning_rate_end=$half" \
        --set stage.1.steps=400 --set stage.1.global_batch=256 --set "stage.1.learning_rate=$half" "$@"
fi
exec "${LAMBERT:-lambert}" tune --config "$configs/$arm.toml" --runs "runs/lamb-$arm-$rate" \
    --set 'optimizer.kind="lamb"' --set optimizer.beta2=0.9 --set stage.0.global_batch=256 --set "stage.0.learning_rate=$rate" \
    --set evaluation.every_steps=50 --set evaluation.samples=4096 \
    --grid "run.seed=$seeds" "$@"
