"""Trains BertForPreTraining of transformers on the batches of the file TASK. For each input line `NAME FIRST END`, trains
on the batches FIRST to END (exclusive) and prints the seconds that they took."""

import json
import sys
import time

import torch
from transformers import BertConfig, BertForPreTraining

with open(sys.argv[1]) as file:
    task = json.load(file)
torch.set_num_threads(task["threads"])


def tensors(batch):
    rows, width = len(batch["lengths"]), batch["width"]
    ids, segments = (torch.tensor(batch[key]).view(rows, width) for key in ("ids", "segments"))
    mask = (torch.arange(width)[None] < torch.tensor(batch["lengths"])[:, None]).long()
    positions, answers = torch.tensor(batch["positions"]), torch.tensor(batch["labels"])
    labels = torch.full((rows * width,), -100).index_put((positions,), answers).view(rows, width)
    inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
    return inputs, labels, torch.tensor(batch["pair_labels"]), positions, answers


class Contender:
    def __init__(self, masked_only):
        torch.manual_seed(1)
        sizes = {"vocab_size": task["vocabulary"], "hidden_size": task["hidden"], "intermediate_size": task["intermediate"]}
        layers = {"num_hidden_layers": task["layers"], "num_attention_heads": task["heads"]}
        self.model = BertForPreTraining(BertConfig(**sizes, **layers)).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.masked_only = masked_only

    def loss(self, inputs, labels, pairs, positions, answers):
        if not self.masked_only:
            return self.model(**inputs, labels=labels, next_sentence_label=pairs).loss
        encoded = self.model.bert(**inputs)
        chosen = encoded.last_hidden_state.flatten(0, 1).index_select(0, positions)
        scores, relation = self.model.cls(chosen, encoded.pooler_output)
        cross_entropy = torch.nn.functional.cross_entropy
        return cross_entropy(scores, answers) + cross_entropy(relation, pairs)

    def step(self, batch):
        self.loss(*batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


contenders = {
    "transformers": Contender(masked_only=False),
    "transformers, head at masked positions": Contender(masked_only=True),
}
batches = [tensors(batch) for batch in task["batches"]]
for line in sys.stdin:
    name, first, end = line.strip().rsplit(" ", 2)
    start = time.perf_counter()
    for batch in batches[int(first) : int(end)]:
        contenders[name].step(batch)
    print(time.perf_counter() - start, flush=True)
