"""Compares `lambert embed` and `lambert score` with transformers: the same texts, hidden states and probabilities.

    pip install torch==2.11.0 transformers==5.24.0 pandas pyarrow
    python tests/transformers/check_embed.py LAMBERT RUN TEXTS

Exports the newest checkpoint of RUN and reads the export with transformers. TEXTS has a text in each line.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import pandas
import torch
from transformers import AutoModelForMaskedLM, BertTokenizerFast

lambert, run, texts = sys.argv[1:]
folder = pathlib.Path(tempfile.mkdtemp())
subprocess.run([lambert, "--quiet", "export", run, "--output", folder / "model"], check=True)
model = AutoModelForMaskedLM.from_pretrained(folder / "model").eval()
tokenizer = BertTokenizerFast.from_pretrained(folder / "model")
lines = pathlib.Path(texts).read_bytes().decode().removesuffix("\n").split("\n")
most = tokenizer.model_max_length


def states(text):
    tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=most, return_token_type_ids=False)
    with torch.no_grad():
        return tokens, model(**tokens, output_hidden_states=True).hidden_states


def embedded(*options):
    output = folder / "embeddings.parquet"
    subprocess.run([lambert, "--quiet", "embed", run, "--input", texts, "--output", output, *options], check=True)
    return torch.stack([torch.tensor(row) for row in pandas.read_parquet(output)["embedding"]])


expected = [states(line)[1] for line in lines]
layers = len(expected[0]) - 1
cases = {
    "mean of the last layer": ([], lambda hidden: hidden[-1][0].mean(0)),
    "[CLS] of the last layer": (["--pooling", "cls"], lambda hidden: hidden[-1][0, 0]),
    "mean of the embeddings": (["--layer", "0"], lambda hidden: hidden[0][0].mean(0)),
    "mean of the layer before the last": (["--layer", str(layers - 1)], lambda hidden: hidden[-2][0].mean(0)),
}
if layers >= 4:
    cases["last four"] = (["--layer", "last-four"], lambda hidden: torch.cat(hidden[-4:], -1)[0].mean(0))
for name, (options, of) in cases.items():
    difference = (embedded(*options) - torch.stack([of(hidden) for hidden in expected])).abs().max().item()
    print(f"{name}: {difference:.1e}")
    assert difference < 1e-4, name

scored = subprocess.run([lambert, "--quiet", "score", run, "--input", texts, "--json"], check=True, capture_output=True, text=True)
for line, score in zip(lines, map(json.loads, scored.stdout.splitlines()), strict=True):
    tokens = tokenizer(line, return_tensors="pt", truncation=True, max_length=most, return_token_type_ids=False)
    ids, total = tokens["input_ids"], 0.0
    for position in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        masked[0, position] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(input_ids=masked, attention_mask=tokens["attention_mask"]).logits
        total += logits[0, position].log_softmax(-1)[ids[0, position]].item()
    assert abs(total - score["log_likelihood"]) < 1e-3 * max(1, abs(total)), (line, total, score)
print(f"scores of {len(lines)} texts agree")
