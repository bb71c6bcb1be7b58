#!/bin/sh
# Demonstration that takes a few minutes. It prepares a corpus, a vocabulary and a dataset, trains on two ranks and exports
# the model. Halfway through training it kills one rank, and the run restarts. `make demo` calls this script.
#
#   demo.sh PROGRAMS FOLDER [CORPUS...]    PROGRAMS holds lambert and lambert-worker; FOLDER is recreated
#
# DEMO_STEPS in the environment reduces the steps of configs/demo.toml, for tests.
set -eu

programs=$1; demo=$2; shift 2
lambert=$programs/lambert
say() { printf '\n== %s\n' "$*"; }
# number KEY: prints the first number with this key in the JSON text on standard input.
number() { grep -o "\"$1\": *[-0-9.e]*" | head -n 1 | sed 's/.*: *//'; }

rm -rf "$demo"
mkdir -p "$demo"

# 1. Text from the user, or generated text.
if [ $# -eq 0 ]; then
    say "Corpus: synthetic, from a small grammar"
    "$lambert" generate --documents 4000 --seed 1 --output "$demo/corpus.txt"
    set -- "$demo/corpus.txt"
    documents=blank-line; length=64
else
    documents=file; length=128
fi

# 2. Vocabulary and dataset. File formats are detected from the first bytes.
say "Vocabulary"
"$lambert" vocab --size 8000 --output "$demo/vocab.txt" --input "$@"
say "Dataset"
for path in "$@"; do
    printf '[[source]]\npath = "%s"\nformat = "auto"\ndocuments = "%s"\n' \
        "$(printf '%s' "$path" | sed 's/["\\]/\\&/g')" "$documents"
done > "$demo/prep.toml"
cat >> "$demo/prep.toml" <<TOML
[output]
url = "$demo/data"
shards = 2
[vocabulary]
file = "$demo/vocab.txt"
[samples]
sequence_length = $length
held_out = 0.05
TOML
"$lambert" prep --config "$demo/prep.toml"

# 3. Training on two ranks. Halfway, rank 1 is killed to imitate the loss of a machine.
say "Training: 2 workers, LAMB"
steps=${DEMO_STEPS:-$(sed -n 's/^steps = //p' configs/demo.toml)}
"$lambert" run --config configs/demo.toml --run "$demo/run" \
    --set "stage.0.steps=$steps" --set "checkpoint.every_steps=$((steps / 24))" \
    --set "stage.0.data=$demo/data/train" --set "evaluation.data=$demo/data/held-out" &
run=$!
killed=
while kill -0 $run 2>/dev/null; do
    sleep 0.5
    [ -z "$killed" ] || continue
    status=$("$lambert" status "$demo/run" --json 2>/dev/null) || continue
    step=$(echo "$status" | number step)
    [ "${step:-0}" -ge $((steps / 2)) ] || continue
    victim=$(echo "$status" | grep -o '{"rank":1,[^}]*}' | number pid)
    [ -n "$victim" ] || continue
    say "SIGKILL to rank 1 (pid $victim) at step $step, on purpose"
    kill -9 "$victim"
    killed=$step
done
wait $run
[ -n "$killed" ] || { echo "demo: the run ended before a rank could be killed" >&2; exit 1; }

# 4. Results.
say "Held-out evaluation and export"
"$lambert" eval "$demo/run" --data "$demo/data/held-out" --json > "$demo/eval.json"
"$lambert" export "$demo/run" --output "$demo/model"
"$lambert" report "$demo/run" --output "$demo/report.html"
first=$(cat "$demo"/run/metrics/*.jsonl | head -n 1 | number mlm_loss)
last=$(cat "$demo"/run/metrics/*.jsonl | grep '"seconds"' | tail -n 20 \
    | grep -o '"mlm_loss":[-0-9.e]*' | sed 's/.*://' | awk '{ sum += $1 } END { printf "%.4f", sum / NR }')
entropy=$(number unigram_entropy < "$demo/eval.json")
held_out=$(number mlm_loss < "$demo/eval.json")
lost=$("$lambert" status "$demo/run" --json | grep -o '"failures":\[.*' | number seconds)
say "Summary"
printf 'MLM loss at the first step               %.4f nats\n' "$first"
printf 'MLM loss of the last 20 steps            %.4f nats\n' "$last"
printf 'held-out MLM loss                        %.4f nats\n' "$held_out"
printf 'held-out unigram baseline                %.4f nats\n' "$entropy"
awk "BEGIN { exit !($held_out > $entropy) }" \
    && echo 'the held-out loss is above the unigram baseline: too little text for this number of steps'
printf 'recovery time after SIGKILL at step %-4s %.1f s\n' "$killed" "$lost"
printf 'exported for transformers                %s\n' "$demo/model"
printf 'report with the loss curves              %s\n' "$demo/report.html"
# Held-out text in which the fifth word is masked.
say "Fill-mask"
"$lambert" inspect "$demo/data/held-out" --samples 30 --json | grep -o '"first":"[^"\\]*"' | sed 's/^"first":"//; s/"$//' \
    | awk 'NF >= 6 && !/\[UNK\]/ && $5 ~ /^[a-z]+$/ { word = $5; $5 = "[MASK]"; text = $1
        for (i = 2; i <= NF && i <= 40; i++) text = text " " $i
        print word "\t" text; if (++n == 3) exit }' > "$demo/masked.txt"
[ -s "$demo/masked.txt" ] || echo "no held-out sample has six words without [UNK]: too little text, or not in Latin letters"
while IFS="$(printf '\t')" read -r word text; do
    printf '%s\n' "$text"
    printf '%s (expected: %s)\n' "$("$lambert" fill-mask "$demo/run" "$text" --top 5)" "$word"
done < "$demo/masked.txt"
