"""Writes curve.safetensors. The file contains the weights of a small BertForPreTraining, ten global batches of eight samples,
and the losses of 50 steps on these batches, for AdamW and for LAMB. The updates are written in plain PyTorch arithmetic.
Gradients are clipped to norm 1. The learning rate has a warm-up of five steps and a linear decay.

    pip install torch==2.11.0 "transformers>=5" numpy safetensors
    python tests/golden/make_curve.py tests/golden/curve.safetensors
"""

import copy
import sys

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForPreTraining

STEPS, WARMUP, BATCHES, ROWS, WIDTH, VOCABULARY, POSITIONS = 50, 5, 10, 8, 16, 96, 24
RATE = {"adamw": 5e-3, "lamb": 2e-2}
BETA1, BETA2, EPS, DECAY, CLIP = 0.9, 0.999, 1e-6, 0.01, 1.0


def draw_batches():
    """Each token is a function of the previous token, so that the model can learn something."""
    ids = torch.zeros(BATCHES, ROWS, WIDTH, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    segments = torch.zeros_like(ids)
    lengths = torch.zeros(BATCHES, ROWS, dtype=torch.long)
    pair = torch.randint(0, 2, (BATCHES, ROWS))
    for batch in range(BATCHES):
        for row in range(ROWS):
            # The last four rows of a batch are a separate micro-batch with twelve columns.
            length = int(torch.randint(9, WIDTH + 1, ()) if row < ROWS // 2 else torch.randint(5, 13, ()))
            length = WIDTH if row == 0 else 12 if row == ROWS // 2 else length
            piece = int(torch.randint(5, VOCABULARY, ()))
            for place in range(length):
                ids[batch, row, place] = piece
                piece = 5 + (7 * piece + 3) % 91
            if row % 3:
                segments[batch, row, length // 2:length] = 1
            for place in torch.randperm(length)[:2]:
                labels[batch, row, place] = ids[batch, row, place]
                ids[batch, row, place] = 4
            lengths[batch, row] = length
    return {"ids": ids, "segments": segments, "lengths": lengths, "labels": labels, "pair": pair}


def attendable(batches, batch):
    """Attention mask of a batch."""
    return (torch.arange(WIDTH) < batches["lengths"][batch][:, None]).long()


def masked_loss(logits, batches, batch):
    """Mean loss at the masked tokens of a batch."""
    labels = batches["labels"][batch]
    return torch.nn.functional.cross_entropy(logits[labels != -100], labels[labels != -100])


def rate_of(step, peak):
    return peak * (step + 1) / WARMUP if step < WARMUP else peak * (1 - (step - WARMUP) / (STEPS - WARMUP))


def decays(name):
    """True if the parameter has weight decay and a trust ratio."""
    return not name.endswith("bias") and "norm" not in name.lower()


def curve(start, kind, peak, loss_of):
    """Losses of all steps from the weights of `start`. `loss_of` returns the loss of a model on a batch."""
    model = copy.deepcopy(start)
    named = dict(model.named_parameters())
    first = {name: torch.zeros_like(value) for name, value in named.items()}
    second = {name: torch.zeros_like(value) for name, value in named.items()}
    losses = []
    for step in range(STEPS):
        model.zero_grad()
        loss = loss_of(model, step % BATCHES)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            norm = torch.sqrt(sum(value.grad.double().square().sum() for value in named.values())).item()
            for name, value in named.items():
                gradient = value.grad * min(1.0, CLIP / norm)
                first[name] = BETA1 * first[name] + (1 - BETA1) * gradient
                second[name] = BETA2 * second[name] + (1 - BETA2) * gradient.square()
                m = first[name] / (1 - BETA1 ** (step + 1))
                v = second[name] / (1 - BETA2 ** (step + 1))
                update = m / (v.sqrt() + EPS) + (DECAY * value if decays(name) else 0)
                trust = 1.0
                if kind == "lamb" and decays(name):
                    trust = (value.double().norm() / update.double().norm()).item()
                value -= rate_of(step, peak) * trust * update
    return losses


def main():
    torch.manual_seed(11)
    start = BertForPreTraining(BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=POSITIONS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.05,
    )).eval()
    batches = draw_batches()

    def loss_of(model, batch):
        out = model(batches["ids"][batch], attention_mask=attendable(batches, batch), token_type_ids=batches["segments"][batch])
        pair_loss = torch.nn.functional.cross_entropy(out.seq_relationship_logits, batches["pair"][batch])
        return masked_loss(out.prediction_logits, batches, batch) + pair_loss

    tensors = {f"weight:{name}": value.detach().clone() for name, value in start.named_parameters()} | batches
    for kind, peak in RATE.items():
        losses = curve(start, kind, peak, loss_of)
        tensors[f"losses:{kind}"] = torch.tensor(losses, dtype=torch.float32)
        print(f"{kind}: from {losses[0]:.4f} to {losses[-1]:.4f}")
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    main()
