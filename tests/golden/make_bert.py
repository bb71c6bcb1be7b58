"""Writes NAME.safetensors. The file contains the random weights of a small pre-training model of Hugging Face transformers,
two inputs (one padded, one with a single segment), and the results of the model: logits, losses, and the gradient of each
parameter.

    pip install torch==2.11.0 transformers numpy safetensors
    for name in bert-tiny bert-untied-tanh megatron-bert; do
        python tests/golden/make_bert.py tests/golden/$name.safetensors
    done

bert-tiny is BertForPreTraining. bert-untied-tanh has an untied decoder and the tanh approximation of GELU. megatron-bert is
MegatronBertForPreTraining, which applies layer normalisation before attention and before the feed-forward layer (pre-norm).

The files of the published shapes are too large for the repository (1.3 and 4 GB). They also contain gradients computed in
float64. These commands write the files and run the comparison:

    mkdir -p golden
    for name in bert-base-uncased bert-base-cased bert-large-uncased bert-large-cased; do
        python tests/golden/make_bert.py golden/$name.safetensors
    done
    LAMBERT_GOLDEN=$PWD/golden cargo test --release --workspace --test model_golden -- --ignored --nocapture
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForPreTraining, MegatronBertConfig, MegatronBertForPreTraining

torch.manual_seed(7)
rows, width, deviation = 2, 16, 0.15
shape = dict(
    vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)
match pathlib.Path(sys.argv[1]).stem:
    case "bert-tiny":
        model = BertForPreTraining(BertConfig(**shape))
    case "bert-untied-tanh":
        options = dict(hidden_act="gelu_pytorch_tanh", tie_word_embeddings=False)
        model = BertForPreTraining(BertConfig(**shape, **options))
    case "megatron-bert":
        model = MegatronBertForPreTraining(MegatronBertConfig(**shape))
    case "bert-base-uncased" | "bert-base-cased" | "bert-large-uncased" | "bert-large-cased" as name:
        rows, width, deviation = 4, 128, 0.02
        shape["vocab_size"] = 30522 if name.endswith("uncased") else 28996
        shape["max_position_embeddings"] = 512
        large = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        base = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
        model = BertForPreTraining(BertConfig(**shape | (large if "large" in name else base)))
    case name:
        sys.exit(f"no model is called {name}")
model = model.eval()
with torch.no_grad():
    for parameter in model.parameters():  # larger than at initialisation, so that every term affects the results
        parameter.add_(deviation * torch.randn_like(parameter))

vocabulary = shape["vocab_size"]
ids = torch.randint(5, vocabulary, (rows, width))
lengths = [width, 11 * width // 16, width, 5][:rows]
segments = torch.zeros(rows, width, dtype=torch.long)
segments[0, 9 * width // 16:] = 1
attendable = torch.zeros(rows, width, dtype=torch.long)
for row, length in enumerate(lengths):
    attendable[row, :length] = 1
    ids[row, length:] = 0
labels = torch.full((rows, width), -100)
chosen = [(0, 1), (0, 8), (0, 14), (1, 3), (1, 9)]
chosen += [(row, place) for row in range(2, rows) for place in range(2, lengths[row], 7)]
for row, position in chosen:
    labels[row, position] = torch.randint(5, vocabulary, ())
pair = torch.tensor([1, 0, 0, 1])[:rows]

out = model(ids, attention_mask=attendable, token_type_ids=segments)
chosen = labels != -100
mlm = torch.nn.functional.cross_entropy(out.prediction_logits[chosen], labels[chosen])
nsp = torch.nn.functional.cross_entropy(out.seq_relationship_logits, pair)
(mlm + nsp).backward()

tensors = {}
for name, parameter in model.named_parameters():  # lists tied parameters only once
    tensors[f"weight:{name}"] = parameter.detach().clone().contiguous()
    gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
    tensors[f"gradient:{name}"] = gradient.detach().clone().contiguous()
tensors |= {
    "ids": ids, "segments": segments, "lengths": torch.tensor(lengths), "pair": pair,
    "positions": chosen.flatten().nonzero().flatten(), "labels": labels[chosen],
    "mlm_logits": out.prediction_logits.detach().flatten(0, 1)[chosen.flatten()].contiguous(),
    "pair_logits": out.seq_relationship_logits.detach().contiguous(),
    "mlm_loss": mlm.detach(), "pair_loss": nsp.detach(),
}
if width > 16:
    model.zero_grad()
    out = model.double()(ids, attention_mask=attendable, token_type_ids=segments)
    loss = torch.nn.functional.cross_entropy(out.prediction_logits[chosen], labels[chosen])
    (loss + torch.nn.functional.cross_entropy(out.seq_relationship_logits, pair)).backward()
    for name, parameter in model.named_parameters():
        tensors[f"gradient64:{name}"] = parameter.grad.float().contiguous()
save_file(tensors, sys.argv[1])
print(f"{len(tensors)} tensors, MLM loss {mlm.item():.6f}, pair loss {nsp.item():.6f}")
