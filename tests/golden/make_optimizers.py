"""Writes golden values of optimizers: weights of three tensors after twelve updates with random gradients.

    pip install torch==2.11.0 torch-optimi==0.3.3
    python tests/golden/make_optimizers.py tests/golden/optimizers.json

StableAdamW is that of optimi (github.com/warner-benjamin/optimi), which trained ModernBERT, in f64. The gradients of two updates
are much larger than the ones before, so that the learning rate of these updates is reduced.
"""

import json
import sys

import torch
from optimi import StableAdamW

torch.manual_seed(1)
SHAPES = [(7, 9), (5,), (40,)]
DECAYS = [True, False, True]
PEAK = 1e-2
RATES = [PEAK * factor for factor in (0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2)]
SIZES = [0.1, 0.1, 0.1, 0.1, 3.0, 0.1, 0.1, 0.01, 0.01, 1.0, 0.1, 1e-7]


def numbers(tensors):
    return [float(f"{value:.7g}") for tensor in tensors for value in tensor.flatten().tolist()]


def rounded(tensor):
    """The values that an f32 reader of seven digits has."""
    return torch.tensor(numbers([tensor])).double().view(tensor.shape)


weights = [rounded(torch.randn(shape) * 0.1) for shape in SHAPES]
gradients = [[rounded(torch.randn(shape) * size) for shape in SHAPES] for size in SIZES]
cases = []
for name, relative in (("decoupled", False), ("fully decoupled", True)):
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in weights]
    groups = [dict(params=[one], weight_decay=0.01 if decays else 0.0) for one, decays in zip(parameters, DECAYS)]
    options = dict(decouple_lr=True, max_lr=PEAK) if relative else {}
    optimizer = StableAdamW(groups, lr=PEAK, betas=(0.9, 0.98), eps=1e-6, foreach=False, triton=False, **options)
    for rate, values in zip(RATES, gradients):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, value in zip(parameters, values):
            parameter.grad = value.clone()
        optimizer.step()
    cases.append(dict(name=name, decay_relative_to_peak=relative, weights=numbers(parameters)))
golden = dict(
    sizes=[tensor.numel() for tensor in weights], decays=DECAYS, peak=PEAK, rates=RATES, weights=numbers(weights),
    gradients=[numbers(step) for step in gradients], cases=cases,
)
with open(sys.argv[1], "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
