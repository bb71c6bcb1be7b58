"""Counts the samples of a dataset with pyarrow, without the code of lambert.

    python3 dataset.py DATASET        prints the figures that `lambert data report --format json` has
"""

import collections
import json
import pathlib
import sys

import pyarrow.parquet

folder = pathlib.Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())
vocabulary = (folder / "vocab.txt").read_text().splitlines()
special = {vocabulary.index(name) for name in ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]}
unknown = vocabulary.index("[UNK]")
samples = []
for shard in sorted(folder.glob("*.parquet")):
    samples += [tuple(ids) for ids in pyarrow.parquet.read_table(shard)["input_ids"].to_pylist()]

counts = collections.Counter(token for ids in samples for token in ids)
plain = {token: count for token, count in counts.items() if token not in special}
total = sum(plain.values())
words = single = 0
for ids in samples:
    for position, token in enumerate(ids):
        if token in special or vocabulary[token].startswith("##"):
            continue
        words += 1
        following = ids[position + 1] if position + 1 < len(ids) else None
        continues = following is not None and following not in special and vocabulary[following].startswith("##")
        single += token != unknown and not continues
lengths = collections.Counter(map(len, samples))
repeated = collections.Counter(samples)
order = sorted(plain, key=lambda token: (-plain[token], token))
padded = len(samples) * manifest["sequence_length"]
print(
    json.dumps(
        {
            "samples": len(samples),
            "tokens": sum(counts.values()),
            "shards": len(list(folder.glob("*.parquet"))),
            "bytes": sum(shard.stat().st_size for shard in folder.glob("*.parquet")),
            "histogram": sorted(lengths.items()),
            "padding": 1 - sum(counts.values()) / padded,
            "used": len(plain),
            "never_used": len(vocabulary) - len(special) - 1 - len([token for token in plain if token != unknown]),
            "unknown": plain.get(unknown, 0) / total,
            "frequent": [[vocabulary[token], plain[token]] for token in order[:30]],
            "rare": [[vocabulary[token], plain[token]] for token in order[::-1][:30]],
            "words": words,
            "single_token": single / words,
            "distinct": len(repeated),
            "repeated": len(samples) - len(repeated),
            "most_frequent": max(repeated.values()),
        }
    )
)
