"""Writes tokenizer.json beside this script: lines of text with the ids from Hugging Face's BertTokenizerFast.

    python tokenizer.py CORPORA

CORPORA contains books/, wiki/ and vocab/ (see docs/reference/formats.md). The script needs transformers and tokenizers. The
committed file was written with transformers 5.23.0 and tokenizers 0.23.3. To keep the file small, each vocabulary is reduced
to the tokens (word pieces) that occur in these lines and to the single characters of these tokens. The Hugging Face
tokenizer and the tokenizer under test read the same reduced vocabulary.
"""

import json
import pathlib
import sys
import tempfile

from transformers import BertTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

TORTURE = [
    "",
    " \t\r\n\u00a0\u2003\u3000 ",
    "[MASK] [CLS] [SEP] [PAD] [UNK] [mask] x[MASK]y",
    "un[MASK]able ##able # ## ###",
    "e\u0301 caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m \ufb01ne \u1e9b\u0323 \u212b",
    "a\u0300\u0316\u0301b o\u0338 \u0301alone \u200d\u0301",
    "\u0130stanbul \u0131s\u0131 I\u0307 I \u0049\u0307\u0049",
    "\u4e2d\u6587abc\u65e5\u672c\u8a9e\u304b\u306a\u30ab\u30ca\ud55c\uad6d\uc5b4 \U00020000\u4e00",
    "\u304c\u304e \u304b\u3099\u304d\u3099 \u30d1 \u30cf\u309a \uff21\uff22\uff23 \uff71\uff72",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea x\ufe0fy",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u05e9\u05b8\u05dc\u05d5\u05b9\u05dd \u202eabc\u202c",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u1797\u17b6\u179f\u17b6",
    "zero\u200bwidth soft\u00adhyphen bom\ufeffinside null\u0000byte bell\u0007 esc\u001b[0m del\u007f \u0085nel",
    "replacement\ufffdcharacter private\ue000use noncharacter\ufdd0x unassigned\u0378x",
    "a" * 100 + " " + "b" * 101 + " " + "\u00e9" * 100 + " " + "e\u0301" * 60,
    "\u1e9e \u00df STRASSE \u03a3\u03a3 \u03c3\u03c2 \u0391\u03c5\u03c4\u03cc\u03c2 \u0401\u0451 \u0419\u0439 \u0407",
    "don't can\u2019t \u201cquoted\u201d -- \u2014 \u2026 ... !? \u00a1\u00bf \u00ab\u00bb $5.99 50% a/b c\\d e_f g^h `i` ~j |k <l> {m}",
    "3.14159 1,000,000 10\u00b2 \u00bd \u2163 \u2460 1st e-mail C++ C# .NET \u00b0C \u20ac\u00a3\u00a5 \u00a9\u00ae\u2122 \u2192\u2264\u221e",
    "http://example.org/path?query=1&other=2#part user@host",
    "\u01c5 \u01c6 \u1fb3 \u1fbc \u0149 \u1e96 \u03d2\u0301 \u0344 \u0958",
    "\U0001d400\U0001d41a \U00010400\U00010428 \u2126 \u212a",
    "word\u2028line\u2029paragraph\u000bvertical\u000cform\u001cfile\u001funit",
]


def texts(corpora: pathlib.Path) -> list[str]:
    """Returns some lines of every language."""
    lines = list(TORTURE)
    for folder in sorted((corpora / "books").iterdir()):
        for path in sorted(folder.iterdir())[:2]:
            found = [line for line in path.read_text("utf-8-sig").splitlines() if len(line) > 40]
            lines += [line[:400] for line in found[200:4000:950]]
    return lines


def cut_down(vocabulary: pathlib.Path, lowercase: bool, lines: list[str]) -> list[str]:
    """Returns the special tokens, the tokens that occur in these lines, and the single characters of these tokens."""
    tokenizer = BertTokenizerFast(vocab=str(vocabulary), do_lower_case=lowercase)
    tokenizer.split_special_tokens = True
    used = set()
    for line in lines:
        for piece in tokenizer.convert_ids_to_tokens(tokenizer.encode(line, add_special_tokens=False)):
            used.update([piece, *piece.removeprefix("##"), *("##" + c for c in piece.removeprefix("##"))])
    known = vocabulary.read_text("utf-8").split("\n")
    return SPECIAL + [piece for piece in known if piece in used and piece not in SPECIAL]


def ids(pieces: list[str], lowercase: bool, lines: list[str]) -> list[list[int]]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(pieces) + "\n")
        file.flush()
        tokenizer = BertTokenizerFast(vocab=file.name, do_lower_case=lowercase)
        assert len(tokenizer) == len(pieces)
        tokenizer.split_special_tokens = True
        return [tokenizer.encode(line, add_special_tokens=False) for line in lines]


def main() -> None:
    corpora = pathlib.Path(sys.argv[1])
    lines = texts(corpora)
    golden = {"lines": lines}
    for name, lowercase in [("cased", False), ("uncased", True)]:
        pieces = cut_down(corpora / f"vocab/bert-base-{name}-vocab.txt", lowercase, lines)
        golden[name] = {"pieces": pieces, "ids": ids(pieces, lowercase, lines)}
    output = pathlib.Path(__file__).with_name("tokenizer.json")
    output.write_text(json.dumps(golden, separators=(",", ":")) + "\n", "utf-8")
    print(len(lines), "lines", output.stat().st_size, "bytes")


main()
