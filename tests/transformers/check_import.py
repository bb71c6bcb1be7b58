"""Imports models that transformers made with random weights, and compares logits and tensors with transformers.

    pip install torch==2.11.0 transformers==5.24.0
    python tests/transformers/check_import.py LAMBERT VOCAB [FAMILY...] [--tokenizers WORK --ids IDS]

VOCAB is a vocab.txt. For each family, several shapes are written by save_pretrained, imported, exported, and loaded again. All
tensors must be equal. The logits of the folder and of the export must be equal to 1e-5. `lambert score` on the imported run must
agree with the logits of transformers to 0.1 %.

WORK is the folder of check_tokenizer_files.py: a family gets its own kind of tokenizer. IDS is the program `ids` of
`cargo build --release -p lambert-data-prep --examples`: its ids must be those of AutoTokenizer on the export.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertTokenizerFast, PreTrainedTokenizerFast

parser = argparse.ArgumentParser()
parser.add_argument("lambert")
parser.add_argument("vocab")
parser.add_argument("families", nargs="*")
parser.add_argument("--tokenizers", type=pathlib.Path)
parser.add_argument("--ids", type=pathlib.Path)
arguments = parser.parse_args()
lambert, vocab, chosen = arguments.lambert, arguments.vocab, arguments.families
text = "the old man and the sea went to the house of the king"
POST = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, max_position_embeddings=64)
DEBERTA = dict(
    relative_attention=True, share_att_key=True, position_buckets=16, position_biased_input=False, norm_rel_ebd="layer_norm",
    pos_att_type=["c2p", "p2c"], legacy=False,
)
FAMILIES = {
    "bert": ("BertConfig", "BertForPreTraining", POST, [{}, {"hidden_act": "gelu_new"}, {"tie_word_embeddings": False}, {"num_attention_heads": 2}, {"hidden_act": "silu"}]),
    "bert-mlm": ("BertConfig", "BertForMaskedLM", POST, [{}, {"layer_norm_eps": 1e-5}, {"num_hidden_layers": 1}, {"hidden_size": 32}, {"intermediate_size": 64}]),
    "megatron-bert": ("MegatronBertConfig", "MegatronBertForPreTraining", POST, [{}, {"hidden_act": "silu"}, {"num_hidden_layers": 3}, {"hidden_size": 32}, {"num_attention_heads": 8}]),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", POST | {"type_vocab_size": 1}, [{}, {"hidden_size": 32}, {"hidden_act": "silu"}, {"num_hidden_layers": 3}, {"layer_norm_eps": 1e-5}]),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaForMaskedLM", POST | {"type_vocab_size": 1}, [{}, {"hidden_size": 32}, {"hidden_act": "silu"}, {"num_hidden_layers": 3}, {"layer_norm_eps": 1e-5}]),
    "albert": ("AlbertConfig", "AlbertForPreTraining", POST | {"embedding_size": 24}, [{}, {"num_hidden_groups": 2}, {"embedding_size": 32}, {"hidden_act": "gelu"}, {"num_hidden_layers": 4}]),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", POST | {"embedding_size": 24}, [{}, {"embedding_size": 64}, {"hidden_size": 32}, {"num_hidden_layers": 3}, {"hidden_act": "silu"}]),
    "distilbert": (
        "DistilBertConfig", "DistilBertForMaskedLM",
        dict(dim=64, n_layers=2, n_heads=4, hidden_dim=96, max_position_embeddings=64), [{}, {"activation": "gelu"}, {"n_layers": 3}, {"dim": 32}, {"hidden_dim": 64}],
    ),
    "modernbert": (
        "ModernBertConfig", "ModernBertForMaskedLM",
        POST | {"num_hidden_layers": 4, "local_attention": 8},
        [{}, {"norm_bias": True}, {"attention_bias": True, "mlp_bias": True, "classifier_bias": True}, {"local_attention": 16}, {"hidden_size": 32}],
    ),
    "deberta-v2": ("DebertaV2Config", "DebertaV2ForMaskedLM", POST | DEBERTA, [{}, {"legacy": True}, {"position_buckets": 32}, {"hidden_size": 32}, {"num_hidden_layers": 3}]),
}


def logits(folder, cls, ids):
    model = cls.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        out = model(input_ids=ids)
    return (out.prediction_logits if "prediction_logits" in out else out.logits)[0]


def tokenizer_of(family):
    folder = arguments.tokenizers and arguments.tokenizers / family
    if folder and folder.exists():
        # The generic class obeys tokenizer.json.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        assert tokenizer.is_fast
        return tokenizer
    return BertTokenizerFast(vocab=vocab)


def check_ids(export):
    """Compares the ids of lines of text with those that AutoTokenizer gives for the export."""
    golden = pathlib.Path(__file__).parents[2] / "data-prep/tests/golden/tokenizer.json"
    lines = [line for line in json.loads(golden.read_text("utf-8"))["lines"] if "[MASK]" not in line]
    path = export / ("vocab.txt" if (export / "vocab.txt").exists() else "tokenizer.json")
    tokenizer = AutoTokenizer.from_pretrained(export)
    case = "uncased" if getattr(tokenizer, "do_lower_case", False) else "cased"
    text = "".join(json.dumps(line) + "\n" for line in lines)
    output = subprocess.run([arguments.ids, path, case], input=text.encode(), check=True, capture_output=True).stdout
    found = [json.loads(line) for line in output.split(b"\n") if line]
    expected = tokenizer(lines, add_special_tokens=False)["input_ids"]
    wrong = [line for line, left, right in zip(lines, found, expected) if left != right]
    assert len(found) == len(lines) and not wrong, wrong[:3]
    return sum(map(len, found))


for family, (config, cls, keys, variants) in FAMILIES.items():
    if chosen and family not in chosen:
        continue
    config, cls = getattr(transformers, config), getattr(transformers, cls)
    for number, variant in enumerate(variants):
        for dtype in (torch.float32, torch.bfloat16):
            folder = pathlib.Path(tempfile.mkdtemp())
            source, run, export = folder / "source", folder / "run", folder / "export"
            tokenizer = tokenizer_of(family)
            torch.manual_seed(number)
            special = {} if family == "distilbert" else {"pad_token_id": tokenizer.pad_token_id}
            model = cls(config(vocab_size=len(tokenizer), initializer_range=0.2, **(keys | special | variant))).to(dtype)
            model.save_pretrained(source, max_shard_size="100KB" if number else "5GB")
            tokenizer.save_pretrained(source)
            subprocess.run([lambert, "--quiet", "import", source, "--output", run], check=True, stdout=subprocess.DEVNULL)
            subprocess.run([lambert, "--quiet", "export", run, "--output", export], check=True, stdout=subprocess.DEVNULL)
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            before, after = logits(source, cls, ids), logits(export, cls, ids)
            difference = (before - after).abs().max().item()
            tensors = {}
            for file in source.glob("*.safetensors"):
                tensors |= load_file(file)
            exported = load_file(export / "model.safetensors")
            # Models of RoBERTa have rows before the first position, which no token uses.
            first = tokenizer.pad_token_id + 1 if family in ("roberta", "xlm-roberta") else 0
            kept = lambda name, tensor: tensor[first:] if name.endswith("position_embeddings.weight") else tensor
            different = [
                name for name, tensor in exported.items()
                if name in tensors and not torch.equal(kept(name, tensor), kept(name, tensors[name]))
            ]
            absent = sorted(set(tensors) - set(exported))
            scored = subprocess.run(
                [lambert, "--quiet", "score", run, "--input", "/dev/stdin", "--json"], input=text + "\n", check=True,
                capture_output=True, text=True,
            )
            total = 0.0
            mask = tokenizer.mask_token_id
            for position in range(1, ids.shape[1] - 1):
                masked = ids.clone()
                masked[0, position] = mask
                total += torch.log_softmax(logits(source, cls, masked)[position].double(), -1)[ids[0, position]].item()
            score = json.loads(scored.stdout)["log_likelihood"]
            print(
                f"{family} {variant} {dtype}: logits {difference:.1e}, different {different}, not exported {absent},"
                f" score {score:.4f}, transformers {total:.4f}", flush=True,
            )
            assert difference <= 1e-5 and not different and abs(score / total - 1) < 1e-3
            if arguments.ids:
                print(f"  {check_ids(export)} ids of {type(tokenizer).__name__} are equal", flush=True)
            same = [name for name in ("tokenizer.json", "tokenizer_config.json") if (source / name).read_bytes() == (export / name).read_bytes()]
            assert len(same) == 2, same
