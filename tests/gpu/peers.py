"""Trains BertForPreTraining of transformers on the first GPU, on the batches of `lambert-worker bench --batches FILE`. Uses bf16
autocast, scaled dot product attention, fused AdamW and gradient accumulation over micro-batches. Measures the eager and the
compiled model. Prints a JSON line for each, with the median seconds per step and the samples per second, or with the error if the
GPU has too little memory.

    peers.py FILE [compiled] [eager]
"""

import gc
import json
import statistics
import sys
import time

import torch
from transformers import BertConfig, BertForPreTraining

with open(sys.argv[1]) as file:
    task = json.load(file)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")


def tensors(batch):
    rows, width = batch["rows"], batch["width"]
    place = torch.arange(width)[None]
    lengths, second = (torch.tensor(batch[key])[:, None] for key in ("lengths", "second"))
    labels = torch.full((rows * width,), -100)
    labels[torch.tensor(batch["positions"])] = torch.tensor(batch["labels"])
    inputs = {
        "input_ids": torch.tensor(batch["ids"]).view(rows, width),
        "token_type_ids": ((place >= second) & (place < lengths)).long(),
        "attention_mask": (place < lengths).long(),
        "labels": labels.view(rows, width),
    }
    if batch["pair_labels"]:
        inputs["next_sentence_label"] = torch.tensor(batch["pair_labels"])
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def wait():
    if device == "cuda":
        torch.cuda.synchronize()


def measure(name, compiled):
    torch.manual_seed(1)
    model = task["model"]
    config = BertConfig(
        vocab_size=task["vocabulary"],
        hidden_size=model["hidden"],
        num_hidden_layers=task["layers"],
        num_attention_heads=model["heads"],
        intermediate_size=model["intermediate"],
        max_position_embeddings=model["positions"],
        attn_implementation="sdpa",
    )
    bert = BertForPreTraining(config).to(device).train()
    optimizer = torch.optim.AdamW(bert.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(bert) if compiled else bert
    seconds = []
    for batch in batches * 2:
        wait()
        start = time.perf_counter()
        for inputs in batch:
            with torch.autocast(device, torch.bfloat16):
                loss = forward(**inputs).loss / len(batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wait()
        seconds.append(time.perf_counter() - start)
    # The first round compiles and warms up.
    step = statistics.median(seconds[len(batches):])
    samples = sum(len(inputs["input_ids"]) for inputs in batches[0])
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    print(json.dumps({"name": name, "seconds": step, "samples_per_second": samples / step, "peak_gib": peak}), flush=True)


batches = [[tensors(batch) for batch in batches] for batches in task["batches"]]
# The compiled model comes first: the time of a machine with a GPU may end during a measurement.
for name in sys.argv[2:] or ["compiled", "eager"]:
    try:
        measure(name, name == "compiled")
    except torch.cuda.OutOfMemoryError as error:
        print(json.dumps({"name": name, "error": str(error).splitlines()[0]}), flush=True)
    # The next model starts with the memory of the last one.
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
