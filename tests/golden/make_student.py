"""Writes golden values of a whole distillation step from Hugging Face transformers: a BERT teacher and a DistilBERT student with
random weights, two padded inputs, the three losses of DistilBERT (arXiv 1910.01108), and the gradient of each parameter of the
student for their weighted sum.

    pip install torch==2.11.0 "transformers>=5" numpy safetensors
    python tests/golden/make_student.py tests/golden/student.safetensors

The student learns the distributions and the last hidden states of the teacher at all tokens that are not padding.
"""

import sys

import torch
import transformers as hf
from safetensors.torch import save_file

PAD, VOCABULARY, WIDTH, TEMPERATURE = 0, 37, 14, 2.0
WEIGHTS = {"soft_targets": 5.0, "mlm": 2.0, "cosine": 1.0}


def randomize(model):
    with torch.no_grad():
        for parameter in dict.fromkeys(model.parameters()):  # larger, so that every term affects the results
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.eval()


def main():
    torch.manual_seed(11)
    teacher = randomize(hf.BertForPreTraining(hf.BertConfig(
        vocab_size=VOCABULARY, hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=20,
        max_position_embeddings=16, pad_token_id=PAD, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )))
    student = randomize(hf.DistilBertForMaskedLM(hf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=12, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=16, pad_token_id=PAD,
        dropout=0.0, attention_dropout=0.0,
    )))
    lengths = [WIDTH, 9]
    ids = torch.randint(5, VOCABULARY, (2, WIDTH))
    segments, attendable = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        attendable[row, :length] = 1
        ids[row, length:] = PAD
    labels = torch.full_like(ids, -100)
    for row, position in [(0, 1), (0, 7), (0, 12), (1, 3), (1, 8)]:
        labels[row, position] = torch.randint(5, VOCABULARY, ())
    chosen, real = labels != -100, attendable.bool()
    with torch.no_grad():
        taught = teacher(input_ids=ids, attention_mask=attendable, token_type_ids=segments, output_hidden_states=True)
    ours = student(input_ids=ids, attention_mask=attendable, output_hidden_states=True)
    losses = {
        "soft_targets": torch.nn.KLDivLoss(reduction="batchmean")(
            torch.log_softmax(ours.logits[real] / TEMPERATURE, -1), torch.softmax(taught.prediction_logits[real] / TEMPERATURE, -1)
        ) * TEMPERATURE**2,
        "mlm": torch.nn.functional.cross_entropy(ours.logits[chosen], labels[chosen]),
        "cosine": torch.nn.CosineEmbeddingLoss()(
            ours.hidden_states[-1][real], taught.hidden_states[-1][real], torch.ones(int(real.sum()))
        ),
    }
    sum(WEIGHTS[name] * loss for name, loss in losses.items()).backward()
    tensors = {
        "ids": ids, "segments": segments, "lengths": torch.tensor(lengths), "positions": chosen.flatten().nonzero().flatten(),
        "labels": labels[chosen],
    }
    tensors |= {f"{name}_loss": loss.detach() for name, loss in losses.items()}
    for name, parameter in student.named_parameters():
        tensors[f"weight:{name}"] = parameter.detach().clone().contiguous()
        tensors[f"gradient:{name}"] = parameter.grad.clone().contiguous()
    for name, parameter in teacher.named_parameters():
        tensors[f"teacher:{name}"] = parameter.detach().clone().contiguous()
    save_file(tensors, sys.argv[1])
    print(f"{sys.argv[1]}: {len(tensors)} tensors, " + ", ".join(f"{name} {loss.item():.6f}" for name, loss in losses.items()))


if __name__ == "__main__":
    main()
