#!/bin/sh
# Runs of several lengths at a constant rate with a cool-down in the last fifth, from which critical.py has the samples to a given loss.
# Warm-up is a fifth of the steps before the cool-down. After a kill the same command resumes and runs only what is missing.
#
#   docs/large-batch/critical.sh OPTIMIZER BATCH RATE "SAMPLES SAMPLES" [MORE]     in a folder with data/; MORE: arguments of lambert tune
set -eu

optimizer=$1 batch=$2 rate=$3 lengths=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
for samples in $lengths; do
    steps=$((samples / batch))
    cool=$((steps / 5))
    set -- "$@" --trial "stage.0.steps=$((steps - cool)) stage.1.steps=$cool"
done
exec "${LAMBERT:-lambert}" tune --config "$here/constant.toml" --runs "runs/constant-$optimizer-$batch" \
    --set "optimizer.kind=\"$optimizer\"" --set "stage.0.global_batch=$batch" --set "stage.1.global_batch=$batch" \
    --set "stage.0.learning_rate=$rate" --set "stage.1.learning_rate=$rate" --set "evaluation.every_steps=$((25600 / batch))" \
    --set "metrics.noise_scale_every_steps=$((2560 / batch))" "$@"
