"""Compares token ids of byte-level BPE and Unigram tokenizers with those of the tokenizers library of Python.

    python check_tokenizer_files.py EXAMPLES CORPORA WORK [TOKENIZER.json ...]

EXAMPLES is the folder of the programs `sentences` and `ids` (cargo build --release -p lambert-data-prep --examples).
CORPORA contains books/ and wiki/. WORK is a folder for tokenizers that transformers trains and saves (tokenizer_kinds.py); more
tokenizers can be named. The lines are those of check_ids.py. The library reads each text with
`encode_special_tokens`, so that no text gives a special token. For Unigram models it still gives the ids of special tokens that
stand in the text; lambert does not, so that these lines are left out. Needs transformers, tokenizers and sentencepiece. Exits
with 1 if ids differ in lines without characters that one of the libraries does not know.
"""

import json
import pathlib
import subprocess
import sys
import unicodedata

import tokenizers
import tokenizer_kinds
from check_ids import hard, sentences


def ours(examples: pathlib.Path, path: pathlib.Path, lines: list[str]) -> list[list[int]]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    output = subprocess.run([examples / "ids", path, "cased"], input=text.encode(), check=True, capture_output=True)
    return [json.loads(line) for line in output.stdout.split(b"\n") if line]


def new_characters(line: str) -> list[str]:
    """Characters that have changed their class in one of the last versions of Unicode."""
    return sorted({c for c in line if unicodedata.category(c) == "Cn"})


def main() -> int:
    examples, corpora, work = (pathlib.Path(argument) for argument in sys.argv[1:4])
    work.mkdir(parents=True, exist_ok=True)
    named = [pathlib.Path(argument) for argument in sys.argv[4:]]
    paths = [folder / "tokenizer.json" for folder in tokenizer_kinds.make(corpora, work)] + named
    texts = [("sentences", sentences(examples, corpora)), ("lines", hard(corpora))]
    failed = 0
    for path in paths:
        theirs = tokenizers.Tokenizer.from_file(str(path))
        theirs.encode_special_tokens = True
        file = json.loads(path.read_text("utf-8"))
        is_unigram = file["model"]["type"] == "Unigram"
        special = {token["id"]: token["content"] for token in file["added_tokens"] if token["special"]}
        unknown = {id for id, text in special.items() if text in ("[UNK]", "<unk>")}
        for name, lines in texts:
            if is_unigram:
                lines = [line for line in lines if not any(text in line for text in special.values())]
            found = ours(examples, path, lines)
            assert len(found) == len(lines), (len(found), len(lines))
            ids = wrong = unassigned = 0
            for start in range(0, len(lines), 10_000):
                part = lines[start : start + 10_000]
                expected = [encoding.ids for encoding in theirs.encode_batch(part, add_special_tokens=False)]
                for line, left, right in zip(part, found[start:], expected):
                    ids += len(right)
                    if left != right and new_characters(line):
                        unassigned += 1
                    elif left != right or any(id in special and id not in unknown for id in left):
                        wrong += 1
                        if wrong <= 3:
                            print(f"{line!r}\n  ours   {left}\n  theirs {right}")
            print(
                f"{path.parent.name}, {name}: {len(lines)} lines, {ids} ids, {wrong} lines differ, "
                f"{unassigned} more with characters outside Unicode {unicodedata.unidata_version}",
                flush=True,
            )
            failed += wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
