#!/bin/sh
# Runs of one cell of the study: an optimizer and a batch size, tuned over learning rates. After a kill the same command resumes and
# runs only what is missing.
#
#   docs/large-batch/study.sh OPTIMIZER BATCH RATE,RATE [MORE]     in a folder with data/; MORE: arguments of lambert tune
#
# CELL: the folder of the runs, below runs/ (OPTIMIZER-BATCH if unset). SAMPLES: of a run (256000 if unset).
set -eu

optimizer=$1 batch=$2 rates=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
steps=$((${SAMPLES:-256000} / batch))
exec "${LAMBERT:-lambert}" tune --config "$here/study.toml" --runs "runs/${CELL:-$optimizer-$batch}" \
    --set "optimizer.kind=\"$optimizer\"" --set "stage.0.global_batch=$batch" --set "stage.0.steps=$steps" \
    --set "evaluation.every_steps=$((steps / 8))" --set "metrics.noise_scale_every_steps=$((2560 / batch))" \
    --grid "stage.0.learning_rate=$rates" "$@"
