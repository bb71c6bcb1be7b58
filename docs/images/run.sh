#!/bin/sh
# Trains the run of run.svg and draws it: generated text, two ranks, one of them killed at step 450, growth from 2 to 4
# layers at step 900. Takes a few minutes on two cores. Call it from the root of the repository, after `make build`:
#
#   sh docs/images/run.sh [FOLDER] [PROGRAMS]    FOLDER (default: target/picture) is replaced; PROGRAMS has lambert
set -eu

folder=${1:-target/picture}
lambert=${2:-target/release}/lambert
# The first number of that key in JSON on standard input: number KEY
number() { grep -o "\"$1\": *[0-9]*" | head -n 1 | sed 's/.*: *//'; }

rm -rf "$folder"
mkdir -p "$folder"
"$lambert" generate --documents 4000 --seed 1 --output "$folder/corpus.txt"
"$lambert" vocab --size 8000 --output "$folder/vocab.txt" --input "$folder/corpus.txt"
"$lambert" prep --config configs/prep-demo.toml --set "source.0.path=$folder/corpus.txt" \
    --set "vocabulary.file=$folder/vocab.txt" --set "output.url=$folder/data"

"$lambert" run --config docs/images/run.toml --run "$folder/run" --set "stage.0.data=$folder/data/train" \
    --set "stage.1.data=$folder/data/train" --set "evaluation.data=$folder/data/held-out" &
run=$!
killed=
while [ -z "$killed" ] && kill -0 $run 2>/dev/null; do
    sleep 0.5
    status=$("$lambert" status "$folder/run" --json 2>/dev/null) || continue
    step=$(echo "$status" | number step)
    [ "${step:-0}" -ge 450 ] || continue
    victim=$(echo "$status" | grep -o '{"rank":1,[^}]*}' | number pid)
    [ -n "$victim" ] || continue
    kill -9 "$victim"
    killed=$step
done
wait $run

"$lambert" report "$folder/run" --output "$folder/report.html" --curves docs/images/run.svg
