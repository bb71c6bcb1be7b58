"""Writes the losses of 50 training steps of each encoder family of Hugging Face transformers, without dropout. The batches are
those of curve.safetensors. AdamW is that of torch, and LAMB is written in plain PyTorch arithmetic (make_curve.py). The initial
weights are random numbers that lambert computes too, so the file contains none.

    pip install torch==2.11.0 "transformers>=5" numpy safetensors
    python tests/golden/make_family_curves.py tests/golden/family_curves.json

writes the file of the tests. With a number of layers and a hidden size, it writes the losses of larger models:

    python tests/golden/make_family_curves.py family_curves.json 4 256
    LAMBERT_GOLDEN=$PWD/family_curves.json cargo test --release --workspace --lib longer_curves -- --ignored --nocapture
"""

import copy
import json
import pathlib
import sys

import numpy
import torch
from safetensors.torch import load_file

import make_curve
from make_families import FAMILIES, parameters

# The models of the tests, with the keys of [model] in which they differ.
TESTED = {
    "roberta": dict(family="roberta"),
    "albert": dict(family="albert", groups=1, activation="gelu-tanh"),
    "albert-groups": dict(family="albert", groups=2),
    "electra": dict(family="electra"),
    "distilbert": dict(family="distilbert"),
    "modernbert": dict(
        family="modernbert", attention_output_dropout=0.0, attention_window=6, global_attention_every=3, rotary_base=160000.0,
        local_rotary_base=10000.0,
    ),
    "deberta": dict(family="deberta-v2", position_buckets=6, enhanced_decoder=False),
    "deberta-decoder": dict(family="deberta-v2", position_buckets=6, enhanced_decoder=True),
}
# Embeddings of ALBERT are narrower than its layers, and those of the generator of ELECTRA are wider.
EMBEDDINGS = {"albert": 0.5, "electra": 1.5}
WORD = 1 << 64
GOLDEN_RATIO = 0x9E3779B97F4A7C15


def shape_of(keys, layers, hidden):
    shape = dict(
        layers=layers, hidden=hidden, heads=max(4, hidden // 64), intermediate=4 * hidden, positions=make_curve.POSITIONS,
        activation="gelu", tied_decoder=True, dropout=0.0,
    )
    if keys["family"] in EMBEDDINGS:
        shape["embedding"] = int(EMBEDDINGS[keys["family"]] * hidden)
    return shape | keys


def mix(value):
    """Finalizer of SplitMix64 for an array of u64 (data-prep/dataset/src/random.rs)."""
    value = (value ^ (value >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return value ^ (value >> numpy.uint64(31))


def key_of(name):
    """`Key::new(1).with_bytes(name)` of data-prep/dataset/src/random.rs."""
    def mixed(value):
        return int(mix(numpy.array([value % WORD], dtype=numpy.uint64))[0])

    def derive(key, fact):
        rotated = (key << 23 | key >> 41) % WORD
        return (mixed(rotated ^ mixed(fact + GOLDEN_RATIO)) + key) % WORD

    name = name.encode()
    key = derive(mixed(1 + GOLDEN_RATIO), WORD - 1 - len(name))
    for first in range(0, len(name), 8):
        key = derive(key, int.from_bytes(name[first:first + 8], "little"))
    return key


def initial(name, shape, deviation):
    """Uniformly distributed weights. Gains of normalizations are near 1."""
    count = shape.numel()
    states = numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(GOLDEN_RATIO) + numpy.uint64(key_of(name))
    # Numbers in [-1, 1) in steps of 2^-23, which f32 represents exactly.
    units = (mix(states) >> numpy.uint64(40)).astype(numpy.float32) / numpy.float32(1 << 23) - numpy.float32(1)
    is_gain = "norm" in name.lower() and name.endswith("weight")
    weights = units * numpy.float32(deviation * 3 ** 0.5) + numpy.float32(1 if is_gain else 0)
    return torch.from_numpy(weights).view(shape)


def model_of(shape, deviation):
    family = shape["family"]
    model = FAMILIES[family](shape, make_curve.VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # rows of positions that belong to padding stay zero
            parameter.zero_()
        for name, weight, _ in parameters(model, family):
            weight.copy_(initial(name, weight.shape, deviation))
    return model


def loss_of(family, batches):
    def loss(model, batch):
        inputs = dict(input_ids=batches["ids"][batch], attention_mask=make_curve.attendable(batches, batch))
        if family in ("albert", "electra"):
            inputs["token_type_ids"] = batches["segments"][batch]
        out = model(**inputs)
        if family != "albert":
            return make_curve.masked_loss(out.logits, batches, batch)
        order = torch.nn.functional.cross_entropy(out.sop_logits, batches["pair"][batch])
        return make_curve.masked_loss(out.prediction_logits, batches, batch) + order

    return loss


def adamw_curve(start, peak, loss):
    """Losses of all steps with the AdamW of torch."""
    model = copy.deepcopy(start)
    named = dict(model.named_parameters())
    groups = [
        dict(params=[value for name, value in named.items() if make_curve.decays(name)], weight_decay=make_curve.DECAY),
        dict(params=[value for name, value in named.items() if not make_curve.decays(name)], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, betas=(make_curve.BETA1, make_curve.BETA2), eps=make_curve.EPS)
    losses = []
    for step in range(make_curve.STEPS):
        optimizer.zero_grad()
        value = loss(model, step % make_curve.BATCHES)
        value.backward()
        losses.append(value.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), make_curve.CLIP)
        for group in optimizer.param_groups:
            group["lr"] = make_curve.rate_of(step, peak)
        optimizer.step()
    return losses


def main():
    layers, hidden = (int(size) for size in sys.argv[2:]) if len(sys.argv) > 2 else (3, 32)
    batches = load_file(pathlib.Path(__file__).with_name("curve.safetensors"))
    peaks = {"adamw": make_curve.RATE["adamw"] * 32 / hidden, "lamb": make_curve.RATE["lamb"]}
    deviation = 0.25 * hidden ** -0.5
    curves = {}
    for name, keys in TESTED.items():
        shape = shape_of(keys, layers, hidden)
        model, loss = model_of(shape, deviation), loss_of(shape["family"], batches)
        losses = {
            "adamw": adamw_curve(model, peaks["adamw"], loss),
            "lamb": make_curve.curve(model, "lamb", peaks["lamb"], loss),
        }
        curves[name] = dict(model=shape, losses={kind: [round(loss, 7) for loss in curve] for kind, curve in losses.items()})
        print(name, *(f"{kind}: from {curve[0]:.4f} to {curve[-1]:.4f}" for kind, curve in losses.items()), sep=", ", flush=True)
    with open(sys.argv[1], "w") as file:
        json.dump(dict(deviation=deviation, peaks=peaks, curves=curves), file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
