#!/bin/sh
# Compares the speed of wikitext extraction with wikiextractor. The programs run in turn, with one process each:
#
#   pip install wikiextractor
#   data-prep/benches/peers/wikiextractor.sh DUMP.xml.bz2 COPIES ROUNDS
#
# The dump is first decompressed and repeated COPIES times. Each round prints the speed of both programs, in MB of XML per
# second. The last line contains the median ratio. wikiextractor runs without template expansion, which is its faster mode.
# It discards empty pages, as lambert does.
set -eu
dump=$1 copies=$2 rounds=$3
top=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$top" && cargo build --release --quiet --locked --workspace --example extract)
bzcat "$dump" > "$work/one.xml"
for _ in $(seq "$copies"); do cat "$work/one.xml"; done > "$work/all.xml"
megabytes=$(($(stat -c %s "$work/all.xml") / 1000000))
now() { date +%s.%N; }
rate() { echo "$megabytes $1 $2" | awk '{printf "%.1f", $1 / ($3 - $2)}'; }
for round in $(seq "$rounds"); do
    start=$(now)
    "$top/target/release/examples/extract" "$work/all.xml" > "$work/ours.txt" 2> "$work/ours.log"
    ours=$(rate "$start" "$(now)")
    start=$(now)
    wikiextractor --processes 1 --no-templates --discard_empty -q -b 1000M -o "$work/theirs" "$work/all.xml" 2> "$work/theirs.log"
    theirs=$(rate "$start" "$(now)")
    rm -rf "$work/theirs"
    echo "$ours $theirs" | awk -v r="$round" '{printf "round %s: ours %s MB/s, wikiextractor %s MB/s, ratio %.1f\n", r, $1, $2, $1 / $2}' \
        | tee -a "$work/ratios"
done
sort -t' ' -k9 -n "$work/ratios" | awk '{ratio[NR] = $NF} END {print megabytes "median ratio " ratio[int((NR + 1) / 2)]}'
