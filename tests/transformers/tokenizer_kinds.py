"""Tokenizers of each kind, trained by transformers on lines of some corpora, as folders that transformers saved."""

import base64
import json
import pathlib
import tempfile

import sentencepiece
import tokenizers as hf
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

SIZE = 8000


def training_lines(corpora: pathlib.Path) -> list[str]:
    lines = []
    for path in sorted((corpora / "books").rglob("*.txt"))[::9]:
        lines += path.read_text("utf-8-sig").splitlines()[:3000]
    return lines


def charsmap(lines: list[str]) -> str:
    """Normalization rules of SentencePiece (nmt_nfkc), as tokenizer.json stores them."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"{folder}/model"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines[:2000]), model_prefix=prefix, vocab_size=500, hard_vocab_limit=False
        )
        from sentencepiece import sentencepiece_model_pb2 as proto

        model = proto.ModelProto.FromString(pathlib.Path(f"{prefix}.model").read_bytes())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def modernbert(lines: list[str]) -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE as in ModernBERT: NFC, special tokens after the others, runs of spaces as added tokens."""
    tokenizer = hf.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in range(24, 1, -1)])
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    tokenizer.add_special_tokens([*names.values(), AddedToken("[MASK]", lstrip=True, special=True)])
    cls, sep = (tokenizer.token_to_id(name) for name in ["[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", cls), ("[SEP]", sep)]
    )
    mask = AddedToken("[MASK]", lstrip=True, special=True)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token=mask, **names)


def edited(folder: pathlib.Path, edit) -> None:
    path = folder / "tokenizer.json"
    file = json.loads(path.read_text("utf-8"))
    edit(file)
    path.write_text(json.dumps(file, ensure_ascii=False), "utf-8")


def make(corpora: pathlib.Path, work: pathlib.Path) -> list[pathlib.Path]:
    """Trains the tokenizers that `work` does not have yet, and returns their folders."""
    lines = training_lines(corpora)
    kinds = {
        "roberta": lambda: transformers.RobertaTokenizer().train_new_from_iterator(lines, SIZE),
        "modernbert": lambda: modernbert(lines),
        "xlm-roberta": lambda: transformers.XLMRobertaTokenizer().train_new_from_iterator(lines, SIZE),
        "albert": lambda: transformers.AlbertTokenizer().train_new_from_iterator(lines, SIZE),
        "deberta-v2": lambda: transformers.DebertaV2Tokenizer().train_new_from_iterator(lines, SIZE),
    }
    for name, kind in kinds.items():
        if not (work / name).exists():
            kind().save_pretrained(work / name)
    # Settings that some published tokenizers have.
    prefix, rules = work / "roberta-prefix", work / "xlm-roberta-charsmap"
    if not prefix.exists():
        transformers.RobertaTokenizer.from_pretrained(work / "roberta").save_pretrained(prefix)
        edited(prefix, lambda file: file["pre_tokenizer"].update(add_prefix_space=True))
    if not rules.exists():
        transformers.XLMRobertaTokenizer.from_pretrained(work / "xlm-roberta").save_pretrained(rules)
        map_ = charsmap(lines)
        parts = [
            {"type": "Precompiled", "precompiled_charsmap": map_},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
        edited(rules, lambda file: file.update(normalizer={"type": "Sequence", "normalizers": parts},
               pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}))
    return [work / name for name in [*kinds, "roberta-prefix", "xlm-roberta-charsmap"]]
