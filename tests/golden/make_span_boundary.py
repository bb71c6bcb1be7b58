"""Writes golden values of the span boundary objective (SpanBERT, arXiv 1907.10529, section 3.2): random weights of a small model,
two padded inputs with masked spans, logits, losses, and the gradient of each parameter. The encoder and the MLM head are those of
Hugging Face transformers. The span boundary head is computed here, from the formulas of the paper.

    pip install torch==2.11.0 "transformers>=5" numpy safetensors
    for name in spanbert span-electra; do
        python tests/golden/make_span_boundary.py tests/golden/$name.safetensors
    done

spanbert is BertForPreTraining. span-electra is ElectraForMaskedLM with embeddings that are wider than the hidden size and an untied
decoder. The span boundary head always uses the token embeddings as its decoder, and has its own bias.
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear
from transformers import BertConfig, BertForPreTraining, ElectraConfig, ElectraForMaskedLM

POSITIONS, POSITION_WIDTH, WEIGHT, EPSILON = 20, 200, 0.5, 1e-12
VOCABULARY, WIDTH, LENGTHS = 61, 40, [40, 17]
# Row, first and last masked token. The second span begins after the right boundary of the first one. The third span is longer
# than the table of positions. Boundaries of the first, the fourth and the last span are the first or last token of their sample.
SPANS = [(0, 1, 2), (0, 4, 4), (0, 8, 30), (0, 38, 38), (1, 3, 5), (1, 7, 7), (1, 15, 15)]

torch.manual_seed(7)
shape = dict(
    vocab_size=VOCABULARY, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=WIDTH, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
match pathlib.Path(sys.argv[1]).stem:
    case "spanbert":
        hidden, embedding = 16, 16
        model = BertForPreTraining(BertConfig(**shape, hidden_size=hidden, intermediate_size=32))
        encoder = model.bert
    case "span-electra":
        hidden, embedding = 12, 18
        options = dict(embedding_size=embedding, tie_word_embeddings=False)
        model = ElectraForMaskedLM(ElectraConfig(**shape, hidden_size=hidden, intermediate_size=20, **options))
        encoder = model.electra
    case name:
        sys.exit(f"no model is called {name}")
is_bert = embedding == hidden

prefix = "span_boundary"
shapes = {
    "position_embeddings.weight": (POSITIONS, POSITION_WIDTH),
    "transform.dense.weight": (hidden, 2 * hidden + POSITION_WIDTH), "transform.dense.bias": (hidden,),
    "transform.LayerNorm.weight": (hidden,), "transform.LayerNorm.bias": (hidden,),
    "output.dense.weight": (embedding, hidden), "output.dense.bias": (embedding,),
    "output.LayerNorm.weight": (embedding,), "output.LayerNorm.bias": (embedding,),
    "bias": (VOCABULARY,),
}
head = {name: nn.Parameter(0.2 * torch.randn(size) + name.endswith("LayerNorm.weight")) for name, size in shapes.items()}


def block(name, values):
    values = gelu(linear(values, head[f"{name}.dense.weight"], head[f"{name}.dense.bias"]))
    return layer_norm(values, values.shape[-1:], head[f"{name}.LayerNorm.weight"], head[f"{name}.LayerNorm.bias"], EPSILON)


model = model.eval()
with torch.no_grad():
    for parameter in model.parameters():  # larger than at initialisation, so that every term affects the results
        parameter.add_(0.15 * torch.randn_like(parameter))

ids = torch.randint(5, VOCABULARY, (2, WIDTH))
attendable = torch.zeros(2, WIDTH, dtype=torch.long)
segments = torch.zeros(2, WIDTH, dtype=torch.long)
segments[0, 25:] = 1
for row, length in enumerate(LENGTHS):
    attendable[row, :length] = 1
    ids[row, length:] = 0
labels = torch.full((2, WIDTH), -100)
targets = []
for row, first, last in SPANS:
    labels[row, first:last + 1] = torch.randint(5, VOCABULARY, (last + 1 - first,))
    for offset in range(min(last + 1 - first, POSITIONS)):
        targets.append((row, first - 1, last + 1, offset, labels[row, first + offset].item()))
row, left, right, offset, label = torch.tensor(targets).T

inputs = dict(input_ids=ids, attention_mask=attendable, token_type_ids=segments)
states = encoder(**inputs).last_hidden_state
joined = torch.cat([states[row, left], states[row, right], head["position_embeddings.weight"][offset]], -1)
span_logits = linear(block("output", block("transform", joined)), encoder.embeddings.word_embeddings.weight, head["bias"])
span_loss = cross_entropy(span_logits, label)

out = model(**inputs)
chosen = labels != -100
logits = out.prediction_logits if is_bert else out.logits
mlm = cross_entropy(logits[chosen], labels[chosen])
# lambert divides both losses by the number of masked tokens, which is larger than the number of targets.
loss = mlm + WEIGHT * span_loss * len(targets) / chosen.sum()
tensors = {
    "ids": ids, "segments": segments, "lengths": torch.tensor(LENGTHS),
    "positions": chosen.flatten().nonzero().flatten(), "labels": labels[chosen],
    "mlm_logits": logits.detach().flatten(0, 1)[chosen.flatten()].contiguous(), "mlm_loss": mlm.detach(),
    "span_boundary_weight": torch.tensor(WEIGHT), "span_boundary_loss": span_loss.detach(),
    "span_boundary_logits": span_logits.detach().contiguous(), "span_boundary_labels": label.contiguous(),
    "span_boundary_correct": (span_logits.argmax(-1) == label).sum(),
}
if is_bert:
    pair = torch.tensor([1, 0])
    nsp = cross_entropy(out.seq_relationship_logits, pair)
    loss = loss + nsp
    tensors |= {"pair": pair, "pair_logits": out.seq_relationship_logits.detach().contiguous(), "pair_loss": nsp.detach()}
loss.backward()
parameters = list(model.named_parameters()) + [(f"{prefix}.{name}", parameter) for name, parameter in head.items()]
for name, parameter in parameters:  # lists tied parameters only once
    tensors[f"weight:{name}"] = parameter.detach().clone().contiguous()
    tensors[f"gradient:{name}"] = parameter.grad.detach().clone().contiguous()
save_file(tensors, sys.argv[1])
print(f"{len(tensors)} tensors, {len(targets)} targets, MLM loss {mlm.item():.6f}, span boundary loss {span_loss.item():.6f}")
