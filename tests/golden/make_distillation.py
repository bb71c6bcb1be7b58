"""Writes golden values of the losses of distillation and of their gradients, computed by torch in f64.

    pip install torch==2.11.0
    python tests/golden/make_distillation.py tests/golden/distillation.json

The losses are sums over the tokens with weight 1. Tokens with weight 0 are padding.
"""

import json
import sys

import torch

torch.manual_seed(1)
TOKENS, WIDTH, WIDE, VOCABULARY = 10, 6, 8, 11
WEIGHTS = [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def numbers(tensor):
    return [float(f"{value:.8g}") for value in tensor.flatten().tolist()]


def random(*shape):
    """Values that a reader of eight digits has, in f64."""
    return torch.tensor(numbers(torch.randn(shape)), dtype=torch.float64).view(shape)


states, weight, bias = random(TOKENS, WIDTH), random(VOCABULARY, WIDTH), random(VOCABULARY)
teacher_logits = 2 * random(TOKENS, VOCABULARY)
hidden, teacher_hidden = random(TOKENS, WIDE), random(TOKENS, WIDE)
real = torch.tensor(WEIGHTS) > 0
count = int(real.sum())

soft_targets = []
for temperature in [1.0, 2.0, 3.5]:
    inputs = [tensor.clone().requires_grad_() for tensor in (states, weight, bias)]
    logits = torch.nn.functional.linear(*inputs)
    divergence = torch.nn.KLDivLoss(reduction="batchmean")(
        torch.log_softmax(logits[real] / temperature, -1), torch.softmax(teacher_logits[real] / temperature, -1)
    )
    loss = divergence * temperature**2 * count
    gradients = torch.autograd.grad(loss, inputs)
    soft_targets.append(
        dict(temperature=temperature, loss=loss.item(), gradients=[numbers(gradient) for gradient in gradients])
    )

own = hidden.clone().requires_grad_()
cosine = torch.nn.CosineEmbeddingLoss(reduction="mean")(own[real], teacher_hidden[real], torch.ones(count)) * count
(gradient,) = torch.autograd.grad(cosine, [own])

golden = dict(
    sizes=[TOKENS, WIDTH, WIDE, VOCABULARY], weights=WEIGHTS, states=numbers(states), weight=numbers(weight),
    bias=numbers(bias), teacher_logits=numbers(teacher_logits), soft_targets=soft_targets, hidden=numbers(hidden),
    teacher_hidden=numbers(teacher_hidden), cosine=cosine.item(), cosine_gradient=numbers(gradient),
)
with open(sys.argv[1], "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
