#!/bin/sh
# Runs of several lengths at a constant rate with a cool-down, from which critical.py has the samples to a given loss. Warm-up is 12,800
# samples, as in study.sh's runs, and 50 updates at least. The same command goes on after a kill, and makes only what is missing.
#
#   docs/large-batch/critical.sh OPTIMIZER BATCH RATE "SAMPLES SAMPLES" [MORE]     in a folder with data/; MORE: arguments of lambert tune
set -eu

optimizer=$1 batch=$2 rate=$3 lengths=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
rising=$((batch * 50 > 12800 ? batch * 50 : 12800))
for samples in $lengths; do
    steps=$((samples / batch))
    cool=$((steps / 5))
    warmup=$(awk "BEGIN { print $rising / ($batch * ($steps - $cool)) }")
    set -- "$@" --trial "stage.0.steps=$((steps - cool)) stage.0.warmup=$warmup stage.1.steps=$cool"
done
exec "${LAMBERT:-lambert}" tune --config "$here/constant.toml" --runs "runs/constant-$optimizer-$batch" \
    --set "optimizer.kind=\"$optimizer\"" --set "stage.0.global_batch=$batch" --set "stage.1.global_batch=$batch" \
    --set "stage.0.learning_rate=$rate" --set "stage.1.learning_rate=$rate" --set "evaluation.every_steps=$((25600 / batch))" \
    --set "metrics.noise_scale_every_steps=$((2560 / batch))" "$@"
