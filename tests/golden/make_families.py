"""Writes golden values of encoder families from Hugging Face transformers: random weights of a small model, two padded inputs,
logits, losses, and the gradient of each parameter. The metadata of a file has the keys of [model].

    pip install torch==2.11.0 "transformers>=5" numpy safetensors
    python tests/golden/make_families.py tests/golden/families

writes the files of the tests. With a number, it writes that many random shapes of each family:

    python tests/golden/make_families.py golden 10
    LAMBERT_GOLDEN=$PWD/golden cargo test --release --workspace --test model_golden -- --ignored --nocapture
"""

import json
import pathlib
import random
import sys

import torch
import transformers as hf
from safetensors.torch import save_file

PAD = 0
ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "silu": "silu"}


def shared(model, vocabulary, positions):
    return dict(
        vocab_size=vocabulary, hidden_size=model["hidden"], num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"], intermediate_size=model["intermediate"], max_position_embeddings=positions,
        hidden_dropout_prob=model["dropout"], attention_probs_dropout_prob=model["dropout"], pad_token_id=PAD,
        hidden_act=ACTIVATIONS[model["activation"]], tie_word_embeddings=model["tied_decoder"],
    )


def roberta_keys(model, vocabulary):
    return shared(model, vocabulary, model["positions"] + PAD + 1) | dict(type_vocab_size=1, layer_norm_eps=1e-5)


def roberta(model, vocabulary):
    return hf.RobertaForMaskedLM(hf.RobertaConfig(**roberta_keys(model, vocabulary)))


def xlm_roberta(model, vocabulary):
    network = hf.XLMRobertaForMaskedLM(hf.XLMRobertaConfig(**roberta_keys(model, vocabulary)))
    head = network.lm_head
    del network.lm_head
    network.lm_head = head  # last, as in RobertaForMaskedLM: a tied weight has the name of its first module
    return network


def albert(model, vocabulary):
    keys = shared(model, vocabulary, model["positions"])
    keys |= dict(embedding_size=model["embedding"], num_hidden_groups=model["groups"] or model["layers"])
    return hf.AlbertForPreTraining(hf.AlbertConfig(**keys))


def electra(model, vocabulary):
    keys = shared(model, vocabulary, model["positions"]) | dict(embedding_size=model["embedding"])
    return hf.ElectraForMaskedLM(hf.ElectraConfig(**keys))


def distilbert(model, vocabulary):
    return hf.DistilBertForMaskedLM(hf.DistilBertConfig(
        vocab_size=vocabulary, max_position_embeddings=model["positions"], n_layers=model["layers"], n_heads=model["heads"],
        dim=model["hidden"], hidden_dim=model["intermediate"], dropout=model["dropout"], attention_dropout=model["dropout"],
        pad_token_id=PAD, activation=ACTIVATIONS[model["activation"]], tie_word_embeddings=model["tied_decoder"],
    ))


def modernbert(model, vocabulary):
    rotary = {"full_attention": "rotary_base", "sliding_attention": "local_rotary_base"}
    biases = model.get("linear_bias", False)
    every = model["global_attention_every"]
    return hf.ModernBertForMaskedLM(hf.ModernBertConfig(
        vocab_size=vocabulary, hidden_size=model["hidden"], intermediate_size=model["intermediate"],
        num_hidden_layers=model["layers"], num_attention_heads=model["heads"], hidden_activation=ACTIVATIONS[model["activation"]],
        max_position_embeddings=model["positions"], norm_bias=model.get("norm_bias", False), attention_bias=biases,
        mlp_bias=biases, classifier_bias=biases, local_attention=model["attention_window"], pad_token_id=PAD, eos_token_id=None,
        bos_token_id=None, cls_token_id=None, sep_token_id=None, tie_word_embeddings=model["tied_decoder"],
        layer_types=["sliding_attention" if layer % every else "full_attention" for layer in range(model["layers"])],
        rope_parameters={
            kind: dict(rope_type="default", rope_theta=model.get(key, model["rotary_base"])) for kind, key in rotary.items()
        },
    ))


class DebertaWithDecoder(hf.DebertaV2ForMaskedLM):
    """The masked-language model with the enhanced mask decoder of github.com/microsoft/DeBERTa (apps/models/masked_language_model.py),
    which transformers lacks: two applications of the last layer to the output of the layer below. The first queries are this
    output plus the absolute positions."""

    def __init__(self, config):
        super().__init__(config)
        embeddings = self.deberta.embeddings
        embeddings.absolute = torch.nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, input_ids, attention_mask):
        encoder, embeddings = self.deberta.encoder, self.deberta.embeddings
        embedded = embeddings(input_ids=input_ids, mask=attention_mask)
        below = encoder(embedded, attention_mask, output_hidden_states=True).hidden_states[-2]
        queries = below + embeddings.absolute.weight[: input_ids.shape[1]]
        for _ in range(2):
            queries, _ = encoder.layer[-1](
                below, encoder.get_attention_mask(attention_mask), query_states=queries,
                relative_pos=encoder.get_rel_pos(below), rel_embeddings=encoder.get_rel_embedding(),
            )
        return hf.modeling_outputs.MaskedLMOutput(logits=self.lm_predictions(queries, embeddings.word_embeddings))


def deberta(model, vocabulary):
    keys = shared(model, vocabulary, model["positions"]) | dict(
        type_vocab_size=0, layer_norm_eps=1e-7, relative_attention=True, position_buckets=model["position_buckets"],
        norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, legacy=False,
    )
    return (DebertaWithDecoder if model["enhanced_decoder"] else hf.DebertaV2ForMaskedLM)(hf.DebertaV2Config(**keys))


FAMILIES = {
    "roberta": roberta, "xlm-roberta": xlm_roberta, "albert": albert, "electra": electra, "distilbert": distilbert,
    "modernbert": modernbert, "deberta-v2": deberta,
}
# The models of the tests. Keys that are absent have the values of TINY.
TINY = dict(layers=2, hidden=12, heads=2, intermediate=20, positions=16, activation="gelu", tied_decoder=True, dropout=0.0)
TESTED = {
    "roberta": dict(family="roberta"),
    "roberta-untied": dict(family="roberta", tied_decoder=False, activation="gelu-tanh"),
    "albert": dict(family="albert", layers=3, embedding=6, groups=1, activation="gelu-tanh"),
    "albert-groups": dict(family="albert", layers=3, embedding=12, groups=2, tied_decoder=False),
    "electra": dict(family="electra", embedding=18),
    "electra-untied": dict(family="electra", embedding=12, tied_decoder=False),
    "distilbert": dict(family="distilbert"),
    "distilbert-untied": dict(family="distilbert", tied_decoder=False, activation="gelu-tanh"),
    "modernbert": dict(
        family="modernbert", layers=3, attention_output_dropout=0.0, attention_window=6, global_attention_every=3, rotary_base=160000.0,
        local_rotary_base=10000.0,
    ),
    "modernbert-biases": dict(
        family="modernbert", layers=2, attention_output_dropout=0.0, attention_window=5, global_attention_every=2, rotary_base=10000.0,
        local_rotary_base=500.0, linear_bias=True, norm_bias=True, activation="silu", tied_decoder=False,
    ),
    "deberta": dict(family="deberta-v2", position_buckets=6, enhanced_decoder=False),
    "deberta-decoder": dict(family="deberta-v2", position_buckets=20, positions=24, enhanced_decoder=True, activation="gelu-tanh"),
}


def random_shape(family):
    heads = random.randint(1, 5)
    layers = random.randint(1, 4)
    shape = dict(
        family=family, layers=layers, hidden=heads * random.randint(3, 17), heads=heads, intermediate=random.randint(5, 90),
        positions=random.randint(16, 40), activation=random.choice(list(ACTIVATIONS)), tied_decoder=random.random() < 0.5,
        pad_vocabulary_to=random.choice([1, 8, 100]), dropout=0.0,
    )
    if family in ("albert", "electra"):
        shape["embedding"] = random.choice([shape["hidden"], random.randint(4, 40)])
    if family == "albert":
        shape["groups"] = random.randint(0, layers)
    if family == "deberta-v2":
        shape |= dict(tied_decoder=True, position_buckets=random.randint(2, 20), enhanced_decoder=random.random() < 0.5)
    if family == "modernbert":
        shape["hidden"] = 2 * shape["hidden"]  # rotary positions need an even head size
        shape |= dict(
            attention_output_dropout=0.0, attention_window=random.randint(2, 30), global_attention_every=random.randint(1, 4),
            rotary_base=random.choice([100.0, 10000.0, 160000.0]), local_rotary_base=random.choice([100.0, 10000.0]),
            linear_bias=random.random() < 0.5, norm_bias=random.random() < 0.5,
        )
    return shape


def parameters(model, family):
    """Yields the name, the weights and the gradient of each parameter of lambert. Lists tied parameters only once."""
    for name, parameter in model.named_parameters():
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        weight = parameter.detach()
        if family in ("roberta", "xlm-roberta") and name.endswith("position_embeddings.weight"):
            # The first rows belong to padding. Tokens begin at row PAD + 1.
            weight, gradient = weight[PAD + 1:], gradient[PAD + 1:]
        yield name.replace("embeddings.absolute", "embeddings.position_embeddings"), weight, gradient


def write(folder, name, shape, vocabulary):
    family = shape["family"]
    model = FAMILIES[family](shape, vocabulary).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # larger than at initialisation, so that every term affects the results
            parameter.add_(0.15 * torch.randn_like(parameter))
    width = 14
    lengths = [width, 9]
    ids = torch.randint(5, vocabulary, (2, width))
    attendable = torch.zeros(2, width, dtype=torch.long)
    segments = torch.zeros(2, width, dtype=torch.long)
    if family in ("albert", "electra"):
        segments[0, 8:] = 1
    for row, length in enumerate(lengths):
        attendable[row, :length] = 1
        ids[row, length:] = PAD
    labels = torch.full((2, width), -100)
    for row, position in [(0, 1), (0, 7), (0, 12), (1, 3), (1, 8)]:
        labels[row, position] = torch.randint(5, vocabulary, ())
    chosen = labels != -100
    inputs = dict(input_ids=ids, attention_mask=attendable)
    if family not in ("distilbert", "modernbert", "deberta-v2"):
        inputs["token_type_ids"] = segments
    out = model(**inputs)
    logits = out.prediction_logits if family == "albert" else out.logits
    mlm = torch.nn.functional.cross_entropy(logits[chosen], labels[chosen])
    tensors = {
        "ids": ids, "segments": segments, "lengths": torch.tensor(lengths),
        "positions": chosen.flatten().nonzero().flatten(), "labels": labels[chosen],
        "mlm_logits": logits.detach().flatten(0, 1)[chosen.flatten()].contiguous(), "mlm_loss": mlm.detach(),
    }
    loss = mlm
    if family == "albert":
        pair = torch.tensor([1, 0])
        sop = torch.nn.functional.cross_entropy(out.sop_logits, pair)
        tensors |= {"pair": pair, "pair_logits": out.sop_logits.detach().contiguous(), "pair_loss": sop.detach()}
        loss = mlm + sop
    loss.backward()
    for parameter_name, weight, gradient in parameters(model, family):
        tensors[f"weight:{parameter_name}"] = weight.clone().contiguous()
        tensors[f"gradient:{parameter_name}"] = gradient.detach().clone().contiguous()
    path = folder / f"{name}.safetensors"
    save_file(tensors, path, metadata={"model": json.dumps(shape), "vocabulary": str(vocabulary)})
    print(f"{path}: {len(tensors)} tensors, {path.stat().st_size} bytes, MLM loss {mlm.item():.6f}")


def main():
    torch.manual_seed(7)
    random.seed(7)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        for family in FAMILIES:
            for number in range(int(sys.argv[2])):
                write(folder, f"{family}-{number}", random_shape(family), random.randint(40, 130))
    else:
        for name, keys in TESTED.items():
            write(folder, name, TINY | keys, 37)


if __name__ == "__main__":
    main()
