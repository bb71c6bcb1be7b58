"""Writes golden values of replaced-token detection from Hugging Face transformers: a generator and a discriminator with random
weights and shared embeddings, two padded inputs, given drawn tokens, losses, and the gradient of each parameter.

    pip install torch==2.11.0 "transformers>=5" numpy safetensors
    python tests/golden/make_electra.py tests/golden/electra
"""

import json
import pathlib
import sys

import torch
import transformers as hf
from safetensors.torch import save_file

PAD, VOCABULARY, WIDTH, WEIGHT = 0, 37, 14, 50.0
MODEL = dict(family="electra", layers=2, hidden=12, heads=2, intermediate=20, positions=16, dropout=0.0)
TESTED = {
    "detection": (
        MODEL | dict(embedding=12),
        dict(weight=WEIGHT, generator_layers=1, generator_hidden=12, generator_heads=3, generator_intermediate=18),
    ),
    "detection-projected": (
        MODEL | dict(embedding=18, activation="gelu-tanh"),
        dict(weight=WEIGHT, generator_layers=3, generator_hidden=8, generator_heads=2, generator_intermediate=32),
    ),
}


def config(model, layers, hidden, heads, intermediate):
    return hf.ElectraConfig(
        vocab_size=VOCABULARY, embedding_size=model["embedding"], hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, intermediate_size=intermediate, max_position_embeddings=model["positions"], pad_token_id=PAD,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        hidden_act="gelu_pytorch_tanh" if model.get("activation") == "gelu-tanh" else "gelu",
    )


def write(folder, name, model, settings):
    sizes = [settings[f"generator_{key}"] for key in ("layers", "hidden", "heads", "intermediate")]
    generator = hf.ElectraForMaskedLM(config(model, *sizes)).eval()
    discriminator = hf.ElectraForPreTraining(config(model, *(model[key] for key in ("layers", "hidden", "heads", "intermediate")))).eval()
    discriminator.electra.embeddings = generator.electra.embeddings
    with torch.no_grad():
        for parameter in dict.fromkeys([*generator.parameters(), *discriminator.parameters()]):  # larger, so that every term affects the results
            parameter.add_(0.15 * torch.randn_like(parameter))
    lengths = [WIDTH, 9]
    ids = torch.randint(5, VOCABULARY, (2, WIDTH))
    segments, attendable = torch.zeros_like(ids), torch.zeros_like(ids)
    segments[0, 8:] = 1
    for row, length in enumerate(lengths):
        attendable[row, :length] = 1
        ids[row, length:] = PAD
    labels = torch.full_like(ids, -100)
    for row, position in [(0, 1), (0, 7), (0, 12), (1, 3), (1, 8)]:
        labels[row, position] = torch.randint(5, VOCABULARY, ())
    chosen = labels != -100
    inputs = dict(attention_mask=attendable, token_type_ids=segments)
    logits = generator(input_ids=ids, **inputs).logits
    mlm = torch.nn.functional.cross_entropy(logits[chosen], labels[chosen])
    drawn = torch.randint(5, VOCABULARY, (int(chosen.sum()),))
    drawn[1] = labels[chosen][1]  # a drawn token that equals the original one counts as original
    replaced, targets = ids.clone(), torch.zeros_like(ids)
    replaced[chosen], targets[chosen] = drawn, (drawn != labels[chosen]).long()
    out = discriminator(input_ids=replaced, labels=targets, **inputs)
    (mlm + WEIGHT * out.loss).backward()
    real, detected = attendable.bool(), out.logits > 0
    counts = [(detected == targets.bool()) & real, targets.bool(), detected & real, detected & targets.bool()]
    tensors = {
        "ids": ids, "segments": segments, "lengths": torch.tensor(lengths), "positions": chosen.flatten().nonzero().flatten(),
        "labels": labels[chosen], "drawn": drawn, "mlm_loss": mlm.detach(), "rtd_loss": out.loss.detach(),
        "detection": torch.stack([count.sum() for count in counts]),
    }
    named = [(name if ".embeddings." in name else f"generator.{name}", value) for name, value in generator.named_parameters()]
    named += [(name, value) for name, value in discriminator.named_parameters() if ".embeddings." not in name]
    for parameter_name, parameter in named:
        tensors[f"weight:{parameter_name}"] = parameter.detach().clone().contiguous()
        tensors[f"gradient:{parameter_name}"] = parameter.grad.clone().contiguous()
    path = folder / f"{name}.safetensors"
    metadata = {"model": json.dumps(model), "replaced_tokens": json.dumps(settings), "vocabulary": str(VOCABULARY)}
    save_file(tensors, path, metadata=metadata)
    print(f"{path}: {len(tensors)} tensors, {path.stat().st_size} bytes, MLM loss {mlm.item():.6f}, RTD loss {out.loss.item():.6f}")


def main():
    torch.manual_seed(7)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (model, settings) in TESTED.items():
        write(folder, name, model, settings)


if __name__ == "__main__":
    main()
