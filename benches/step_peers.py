"""Trains a model of transformers on the batches of the file TASK, each of which is a list of micro-batches. Prints a JSON list with
the names of the programs. Then, for each input line `PROGRAM FIRST END`, trains on the batches FIRST to END (exclusive) and prints
the seconds that they took.

The programs are the class with its default attention and fused AdamW, and the same with the MLM head only at masked positions."""

import json
import pathlib
import sys
import time

import torch
import transformers as hf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests/golden"))
import make_families

with open(sys.argv[1]) as file:
    task = json.load(file)
torch.set_num_threads(task["threads"])
shape = task["model"]
family = shape["family"]


def new_model():
    torch.manual_seed(1)
    if family == "bert":
        return hf.BertForPreTraining(hf.BertConfig(**make_families.shared(shape, task["vocabulary"], shape["positions"])))
    model = make_families.FAMILIES[family](shape, task["vocabulary"])
    if family == "modernbert":
        for layer in model.model.layers:  # transformers has this dropout, but only together with that of attention weights
            layer.attn.out_drop = torch.nn.Dropout(shape["attention_output_dropout"])
    return model


def tensors(batch):
    rows, width = len(batch["lengths"]), batch["width"]
    ids, segments = (torch.tensor(batch[key]).view(rows, width) for key in ("ids", "segments"))
    mask = (torch.arange(width)[None] < torch.tensor(batch["lengths"])[:, None]).long()
    positions, answers = torch.tensor(batch["positions"]), torch.tensor(batch["labels"])
    labels = torch.full((rows * width,), -100).index_put((positions,), answers).view(rows, width)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family in ("bert", "albert", "electra"):
        inputs["token_type_ids"] = segments
    return inputs, labels, torch.tensor(batch["pair_labels"]), positions, answers


def predictions(model, chosen):
    """Logits at the chosen positions, from the modules of the class."""
    if family == "bert":
        return model.cls.predictions(chosen)
    if family in ("roberta", "xlm-roberta"):
        return model.lm_head(chosen)
    if family == "albert":
        return model.predictions(chosen)
    if family == "electra":
        return model.generator_lm_head(model.generator_predictions(chosen))
    if family == "distilbert":
        return model.vocab_projector(model.vocab_layer_norm(model.activation(model.vocab_transform(chosen))))
    if family == "modernbert":
        return model.decoder(model.head(chosen))
    return model.lm_predictions(chosen, model.deberta.embeddings.word_embeddings)


def pair_logits(model, encoded):
    head = model.cls.seq_relationship if family == "bert" else model.sop_classifier
    return head(encoded.pooler_output if family == "bert" else encoded[1])


PAIR = {"bert": "next_sentence_label", "albert": "sentence_order_label"}


class Contender:
    def __init__(self, masked_only):
        self.model = new_model().train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.masked_only = masked_only
        parts = [type(self.model).__name__, self.model.config._attn_implementation]
        self.name = ", ".join(parts + (["head at masked positions"] if masked_only else []))

    def loss(self, inputs, labels, pairs, positions, answers):
        if not self.masked_only:
            pair = {PAIR[family]: pairs} if family in PAIR else {}
            return self.model(**inputs, labels=labels, **pair).loss
        encoded = self.model.base_model(**inputs)
        chosen = encoded.last_hidden_state.flatten(0, 1).index_select(0, positions)
        cross_entropy = torch.nn.functional.cross_entropy
        loss = cross_entropy(predictions(self.model, chosen), answers)
        return loss + cross_entropy(pair_logits(self.model, encoded), pairs) if family in PAIR else loss

    def step(self, micro_batches):
        masked = [len(answers) for *_, answers in micro_batches]
        for micro, count in zip(micro_batches, masked):
            (self.loss(*micro) * (count / sum(masked))).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


contenders = [Contender(masked_only=False), Contender(masked_only=True)]
print(json.dumps([contender.name for contender in contenders]), flush=True)
batches = [[tensors(micro) for micro in batch] for batch in task["batches"]]
for line in sys.stdin:
    program, first, end = (int(number) for number in line.split())
    start = time.perf_counter()
    for batch in batches[first:end]:
        contenders[program].step(batch)
    print(time.perf_counter() - start, flush=True)
