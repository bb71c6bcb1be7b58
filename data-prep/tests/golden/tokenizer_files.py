"""Writes tokenizer_files.json beside this script: small byte-level BPE and Unigram tokenizers, and the ids that the
tokenizers library of Python gives for the lines of tokenizer.json. Writes two SentencePiece models, too, with the ids that
SentencePiece gives.

    python tokenizer_files.py

The committed file was written with tokenizers 0.23.3 and sentencepiece 0.2.3 (which needs protobuf). The library reads the
lines with `encode_special_tokens`, and the texts with masks without it.
"""

import base64
import json
import pathlib
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MASKED = [
    "The capital of France is [MASK].",
    "[MASK] was a [MASK][MASK] , said  [MASK] ",
    "un[MASK]able",
    "no mask",
]
# A normalization table needs some rules only: letters of a ligature, a kind of space, and a mark.
RULES = "FB01\t66 69\n2003\t20\n2026\t2E 2E 2E\nC9\tE9\n"


def charsmap(lines: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        rules.write_text(RULES)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=f"{folder}/m", vocab_size=700, hard_vocab_limit=False,
            normalization_rule_tsv=str(rules), minloglevel=2,
        )
        model = proto.ModelProto.FromString((pathlib.Path(folder) / "m.model").read_bytes())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def sentence_piece(lines: list[str], name: str, **more) -> sentencepiece.SentencePieceProcessor:
    """Trains a model and writes it beside this script."""
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        rules.write_text(RULES)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=f"{folder}/m", vocab_size=700, hard_vocab_limit=False,
            normalization_rule_tsv=str(rules), minloglevel=2, **more,
        )
        model = (pathlib.Path(folder) / "m.model").read_bytes()
    (HERE / name).write_bytes(model)
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def special(names: list[str]) -> list[AddedToken]:
    return [AddedToken(name, special=True, normalized=False, lstrip=name in ("[MASK]", "<mask>")) for name in names]


def bpe(lines: list[str], first: list[str], prefix: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special(first),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def unigram(lines: list[str], names: list[str], unk: str, normalizer, pre_tokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    trainer = trainers.UnigramTrainer(
        vocab_size=700, special_tokens=special(names), unk_token=unk, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def template(tokenizer: Tokenizer, cls: str, sep: str, double: bool = False) -> Tokenizer:
    pair = f"{cls} $A {sep} {sep} $B {sep}" if double else f"{cls} $A {sep} $B:1 {sep}:1"
    ids = [(name, tokenizer.token_to_id(name)) for name in (cls, sep)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{cls} $A {sep}", pair=pair, special_tokens=ids)
    return tokenizer


def kinds(lines: list[str]) -> dict[str, Tokenizer]:
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
    first = pre_tokenizers.Metaspace(prepend_scheme="first")
    roberta = bpe(lines, ROBERTA, False)
    roberta.post_processor = processors.RobertaProcessing(
        ("</s>", roberta.token_to_id("</s>")), ("<s>", roberta.token_to_id("<s>"))
    )
    modernbert = bpe(lines, [], False)
    modernbert.normalizer = normalizers.NFC()
    modernbert.add_tokens([AddedToken(" " * count, normalized=True) for count in (4, 3, 2)])
    modernbert.add_special_tokens(special(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]))
    albert = normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
        normalizers.Lowercase(),
    ])
    deberta = normalizers.Sequence([
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(),
        normalizers.Strip(left=False, right=True),
    ])
    map_ = base64.b64decode(charsmap(lines))
    xlm = normalizers.Sequence([normalizers.Precompiled(map_), normalizers.Replace(Regex(" {2,}"), " ")])
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    return {
        "roberta": roberta,
        "roberta-prefix": template(bpe(lines, ROBERTA, True), "<s>", "</s>", double=True),
        "modernbert": template(modernbert, "[CLS]", "[SEP]"),
        "albert": template(unigram(lines, ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], "<unk>", albert, words),
                           "[CLS]", "[SEP]"),
        "deberta-v2": template(unigram(lines, BERT, "[UNK]", deberta, pre_tokenizers.Sequence([metaspace])),
                               "[CLS]", "[SEP]"),
        "xlm-roberta": template(unigram(lines, ROBERTA, "<unk>", xlm, first), "<s>", "</s>", double=True),
    }


def main() -> None:
    lines = json.loads((HERE / "tokenizer.json").read_text("utf-8"))["lines"]
    found = {}
    # A special token in the text would become a second token with its name.
    for name, tokenizer in kinds([line for line in lines if "[MASK]" not in line]).items():
        mask = "<mask>" if tokenizer.token_to_id("<mask>") is not None else "[MASK]"
        masked = [tokenizer.encode(text.replace("[MASK]", mask), add_special_tokens=False).ids for text in MASKED]
        file = json.loads(tokenizer.to_str())
        # The library reads scores from JSON with other last bits than those it trained.
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.encode_special_tokens = True
        ids = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
        found[name] = {"file": file, "ids": ids, "masked": masked}
    plain = [line for line in lines if "[MASK]" not in line]
    fairseq = sentence_piece(plain, "fairseq.model")
    bert = sentence_piece(
        plain, "bert.model", pad_id=0, unk_id=3, bos_id=1, eos_id=2, pad_piece="[PAD]", unk_piece="[UNK]",
        bos_piece="[CLS]", eos_piece="[SEP]",
    )
    # Fairseq puts four tokens before the pieces instead of three.
    shifted = [[3 if id == 0 else id + 1 for id in fairseq.encode(line)] for line in lines]
    models = {"fairseq": shifted, "bert": [bert.encode(line) for line in lines]}
    text = json.dumps({"masked": MASKED, "sentence_piece": models, "kinds": found}, ensure_ascii=False, separators=(",", ":"))
    (HERE / "tokenizer_files.json").write_text(text.replace('"kinds"', '\n"kinds"') + "\n", "utf-8")


if __name__ == "__main__":
    main()
