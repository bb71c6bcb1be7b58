"""Writes golden values of Muon: weights of four matrices after eight updates with random gradients.

    pip install torch==2.11.0
    python tests/golden/make_muon.py tests/golden/muon.json

The updates are those of torch.optim.Muon, whose iterations are in bf16. The values of "fp32" are from the same iterations in f32.
"""

import json
import sys

import torch

torch.manual_seed(1)
SHAPES = [(8, 8), (6, 12), (12, 6), (4, 16)]
RATES = [1e-2, 2e-2, 2e-2, 2e-2, 1.5e-2, 1e-2, 5e-3, 1e-3]
SIZES = [0.1, 0.1, 3.0, 0.1, 0.01, 0.1, 1e-4, 0.1]
DECAY = 0.1


def numbers(tensors):
    return [float(f"{value:.7g}") for tensor in tensors for value in tensor.flatten().tolist()]


def rounded(tensor):
    """The values that a reader of seven digits has."""
    return torch.tensor(numbers([tensor])).view(tensor.shape)


def train(precision, **options):
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in weights]
    optimizer = torch.optim.Muon(parameters, lr=RATES[0], weight_decay=DECAY, **options)
    bfloat16 = torch.Tensor.bfloat16
    if precision == "fp32":
        torch.Tensor.bfloat16 = lambda tensor: tensor.clone()
    for rate, values in zip(RATES, gradients):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, value in zip(parameters, values):
            parameter.grad = value.clone()
        optimizer.step()
    torch.Tensor.bfloat16 = bfloat16
    return numbers(parameters)


weights = [rounded(torch.randn(shape) * 0.05) for shape in SHAPES]
gradients = [[rounded(torch.randn(shape) * size) for shape in SHAPES] for size in SIZES]
CASES = [
    ("bf16", "adamw", True, 5, 0.95),
    ("bf16", "original", True, 5, 0.95),
    ("bf16", "original", False, 3, 0.8),
    ("fp32", "adamw", True, 5, 0.95),
    ("fp32", "original", False, 7, 0.9),
]
ADJUSTMENTS = {"adamw": "match_rms_adamw", "original": "original"}
cases = []
for precision, scale, nesterov, iterations, momentum in CASES:
    values = train(
        precision, adjust_lr_fn=ADJUSTMENTS[scale], nesterov=nesterov, ns_steps=iterations, momentum=momentum
    )
    settings = dict(precision=precision, scale=scale, nesterov=nesterov, iterations=iterations, momentum=momentum)
    cases.append(dict(settings=settings, weights=values))
golden = dict(
    shapes=SHAPES, decay=DECAY, rates=RATES, weights=numbers(weights), gradients=[numbers(step) for step in gradients],
    cases=cases,
)
with open(sys.argv[1], "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
