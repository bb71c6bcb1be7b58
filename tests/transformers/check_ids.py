"""Compares the token IDs of every sentence of some corpora with the IDs of BertTokenizerFast of Hugging Face.

    python check_ids.py EXAMPLES CORPORA

EXAMPLES is the folder of the programs `sentences` and `ids` (cargo build --release -p lambert-data-prep --examples).
CORPORA contains books/, wiki/ and vocab/. The sentences are those that a preparation job would produce. The script also compares
the raw lines of every book and some difficult lines: those of data-prep/tests/golden, and random strings of unusual
characters.
Needs transformers. Exits with 1 if any ID differs.
"""

import itertools
import json
import pathlib
import random
import subprocess
import sys

from transformers import BertTokenizerFast

ODD = (
    "".join(map(chr, range(0x00, 0x100)))
    + "".join(chr(c) for c in itertools.chain(range(0x300, 0x310), range(0x2000, 0x2070), range(0xFE00, 0xFE10)))
    + "\u0130\u0131\u1e9e\u00df\u03a3\u03c2\u0149\u01c5\ufb01\u212b\u2126\u0344\u0958\u1fb3\u0345"
    + "\u4e2d\u6587\u304b\u3099\u30ab\ud55c\uad6d\u1100\u1161\U00020000\uf900\u3007\u3000\uff21\uff71"
    + "\U0001f468\u200d\U0001f469\U0001f3fd\U0001f1e9\U0001f1ea\u0645\u0631\u05e9\u05b8\u202e\u202c\u061c"
    + "\u0939\u094d\u0e20\u0e32"
    + "\ufffd\ue000\ufdd0\u0378\U000e0001\U0010ffff\u180e\u2028\u2029\ufeff"
)
WORDS = [
    "[MASK]", "[SEP]", "##ing", "the", "The", "caf\u00e9",
    "x" * 101, "don't", "\u0130stanbul", "e\u0301" * 51, " ",
]


def hard(corpora: pathlib.Path) -> list[str]:
    golden = pathlib.Path(__file__).parents[2] / "data-prep/tests/golden/tokenizer.json"
    lines = json.loads(golden.read_text("utf-8"))["lines"]
    rng = random.Random(1)
    for _ in range(100_000):
        pick = lambda: rng.choice(WORDS) if rng.random() < 0.2 else rng.choice(ODD)
        lines.append("".join(pick() for _ in range(rng.randint(1, 40))))
    for path in sorted((corpora / "books").rglob("*.txt")):
        lines += [line[:2000] for line in path.read_bytes().decode("utf-8").split("\n") if line]
    return lines


def sentences(examples: pathlib.Path, corpora: pathlib.Path) -> list[str]:
    found = []
    sources = [("text", path) for path in sorted((corpora / "books").iterdir())]
    sources += [("wikipedia", path) for path in sorted((corpora / "wiki").rglob("*.xml.bz2"))]
    for form, path in sources:
        output = subprocess.run([examples / "sentences", form, path], check=True, capture_output=True).stdout
        lines = [json.loads(line) for line in output.decode("utf-8").split("\n") if line]
        print(f"{len(lines):8} sentences of {path.relative_to(corpora)}", file=sys.stderr)
        found += lines
    return found


def ours(examples: pathlib.Path, vocabulary: pathlib.Path, case: str, lines: list[str]) -> list[list[int]]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    output = subprocess.run([examples / "ids", vocabulary, case], input=text.encode(), check=True, capture_output=True)
    return [json.loads(line) for line in output.stdout.split(b"\n") if line]


def main() -> int:
    examples, corpora = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    different = 0
    for name, lines in [("sentences", sentences(examples, corpora)), ("lines", hard(corpora))]:
        for case in ["cased", "uncased"]:
            vocabulary = corpora / f"vocab/bert-base-{case}-vocab.txt"
            theirs = BertTokenizerFast(vocab=str(vocabulary), do_lower_case=case == "uncased")
            theirs.split_special_tokens = True
            found = ours(examples, vocabulary, case, lines)
            assert len(found) == len(lines), (len(found), len(lines))
            tokens = wrong = 0
            for start in range(0, len(lines), 10_000):
                part = lines[start : start + 10_000]
                expected = theirs(part, add_special_tokens=False)["input_ids"]
                for line, left, right in zip(part, found[start:], expected):
                    tokens += len(right)
                    special = [i for i in left if i in theirs.all_special_ids and i != theirs.unk_token_id]
                    if left != right or special:
                        wrong += 1
                        if wrong <= 5:
                            print(f"{case}: {line!r}\n  ours   {left}\n  theirs {right}")
            print(f"{name}, {case}: {len(lines)} lines, {tokens} ids, {wrong} lines differ")
            different += wrong
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
