#!/bin/sh
# All runs of the study (docs/experiments/learning-rate-and-batch.md), one line per table cell, in a folder with data/. After a
# kill the same command resumes and runs only what is missing. About 24 core hours; lines can be run separately.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
study() { CELL=$1; shift; CELL=$CELL "$here/study.sh" "$@"; }
lamb='--set optimizer.beta2=0.9'
long='--set stage.0.warmup=0.2'

study adamw-16 adamw 16 5e-4,1e-3,2e-3
study adamw-64 adamw 64 5e-4,1e-3,2e-3,4e-3
study adamw-64-warmup-0.2 adamw 64 2e-3,4e-3 $long
study adamw-64-warmup-0.2 adamw 64 2e-3 $long --grid run.seed=2,3,4,5
study adamw-256 adamw 256 2e-3,4e-3,8e-3
study adamw-256-warmup-0.2 adamw 256 2.8e-3,4e-3,6e-3,8e-3 $long
study lamb-16 lamb 16 2.5e-3,5e-3,1e-2
study lamb-64 lamb 64 2.5e-3,5e-3,1e-2,1.4e-2
study lamb-64-beta2-0.9 lamb 64 1e-2 $lamb
study lamb-64-warmup-0.2 lamb 64 1e-2,1.4e-2 $long
study lamb-256 lamb 256 5e-3,1e-2,1.4e-2,2e-2
study lamb-256-all-ratios lamb 256 1e-2,2e-2 --set optimizer.trust_undecayed=true
study lamb-256-beta2-0.9 lamb 256 1e-2,1.4e-2,2e-2 $lamb
study lamb-256-warmup-0.2 lamb 256 1.4e-2,2e-2 $long
study lamb-256-beta2-0.9-warmup-0.2 lamb 256 1.4e-2,2e-2,2.8e-2 $lamb $long
study lamb-256-beta2-0.9-warmup-0.2 lamb 256 2e-2 $lamb $long --grid run.seed=2,3,4,5

# One change at a time.
detail() { study lamb-256-details lamb 256 2e-2 $lamb $long "$@"; }
detail --grid optimizer.beta2=0.95
detail --grid stage.0.warmup=0.3
detail --grid stage.0.decay_power=0.5,1.5 --grid 'stage.0.decay="polynomial"'
detail --grid optimizer.clip_norm=0
detail --grid optimizer.weight_decay=0
detail --grid optimizer.eps=1e-8
detail --grid optimizer.bias_correction=false
detail --grid 'optimizer.trust_ratio=[0.1,10.0],[0.01,0.3]'
detail --grid optimizer.trust_undecayed=true

# Full depth and stacked, and three more ways to grow.
"$here/stacking.sh" full 2e-2 1
"$here/stacking.sh" stacked 2e-2 1
"$here/stacking.sh" full 1.4e-2 1,2,3,4
"$here/stacking.sh" stacked 1.4e-2 1,2,3,4
"$here/stacking.sh" stacked 1.4e-2 2 --grid stage.1.growth.moments=copy,zero
"$here/stacking.sh" stacked 1.4e-2 2 --grid stage.1.growth.identity=true

# Four times the samples.
SAMPLES=1000000; export SAMPLES
study adamw-1024-warmup-0.2 adamw 1024 4e-3,6e-3,8e-3 $long
study lamb-1024-beta2-0.9-warmup-0.2 lamb 1024 1.4e-2,2e-2,2.8e-2 $lamb $long --set metrics.trust_ratios_every_steps=10

# Samples to a given loss: lengths on both sides of it.
critical() { "$here/critical.sh" "$@" --set metrics.noise_scale_every_steps=0; }
critical adamw 16 1e-3 "68800 94400 128000"
critical adamw 64 2e-3 "68800 94400 128000"
critical adamw 256 4e-3 "86400 118400 160000"
critical adamw 1024 6e-3 "236800 320000 400000"
critical lamb 16 5e-3 "70400 96000" $lamb
critical lamb 64 1e-2 "68800 94400 128000" $lamb
critical lamb 256 1.4e-2 "118400 160000" $lamb
critical lamb 1024 2e-2 "320000 432000" $lamb
