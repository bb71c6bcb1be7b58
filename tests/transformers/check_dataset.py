"""Opens a dataset with pyarrow and with Hugging Face datasets, and compares both with its manifest.

    python check_dataset.py DATASET [SAMPLES]

DATASET is a folder that `lambert prep` has written (.../train). Prints some samples, decoded by BertTokenizerFast with the
vocab.txt of the dataset. Needs pyarrow, datasets and transformers. Uses no code of this project.
"""

import glob
import hashlib
import json
import pathlib
import sys

import datasets
import pyarrow.dataset
import pyarrow.parquet
from transformers import BertTokenizerFast


def main() -> None:
    folder, shown = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    special, counts = manifest["special"], manifest["counts"]

    table = pyarrow.dataset.dataset(folder, format="parquet", exclude_invalid_files=True).to_table()
    print(table.schema)
    assert table.num_rows == counts["samples"], (table.num_rows, counts)
    lengths = table["length"].to_pylist()
    assert sum(lengths) == counts["tokens"] and max(lengths) <= manifest["sequence_length"]
    assert sum(label or 0 for label in table["pair_label"].to_pylist()) == counts["positive_pairs"]
    for shard in manifest["shards"]:
        path = folder / shard["path"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == shard["sha256"], path
        metadata = pyarrow.parquet.ParquetFile(path).metadata
        assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == shard["row_groups"]
    shards = len(manifest["shards"])
    print("pyarrow:", pyarrow.__version__, table.num_rows, "rows,", sum(lengths), "tokens,", shards, "shards")

    files = sorted(glob.glob(str(folder / "*.parquet")))
    rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(folder.parent / "hf-cache"))
    assert rows.num_rows == counts["samples"]
    for start in range(0, rows.num_rows, 10_000):
        part = rows[start : start + 10_000]
        for ids, length, b in zip(part["input_ids"], part["length"], part["segment_b_start"]):
            assert len(ids) == length and ids[0] == special["cls"] and ids[-1] == special["sep"]
            assert b == 0 or ids[b - 1] == special["sep"]
            assert special["mask"] not in ids and special["pad"] not in ids
    print("datasets:", datasets.__version__, rows)

    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=manifest["lowercase"])
    assert tokenizer.vocab_size == manifest["vocabulary"]["size"]
    assert [tokenizer.pad_token_id, tokenizer.mask_token_id] == [special["pad"], special["mask"]]
    for row in range(shown):
        print(rows[row]["pair_label"], tokenizer.decode(rows[row]["input_ids"]))


main()
