"""A step of BERT-base by torch's DistributedDataParallel over gloo, on processors: seconds, median.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python ddp.py

Four micro-batches of two samples of 128 tokens a rank; gradients travel in the last one's backward pass, as DDP does it.
"""

import os
import statistics
import time

import torch
from torch import distributed, nn

STEPS, MICRO_BATCHES, ROWS, LENGTH, PIECES, HIDDEN = 4, 4, 2, 128, 30522, 768


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.pieces = nn.Embedding(PIECES, HIDDEN)
        self.positions = nn.Embedding(512, HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, 12, 3072, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN))
        self.bias = nn.Parameter(torch.zeros(PIECES))

    def forward(self, ids, masked, labels):
        hidden = self.encoder(self.pieces(ids) + self.positions(torch.arange(LENGTH)))
        picked = hidden.flatten(0, 1)[masked]
        logits = nn.functional.linear(self.transform(picked), self.pieces.weight, self.bias)
        return nn.functional.cross_entropy(logits, labels)


def main():
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(1)
    model = Bert()
    if world > 1:
        distributed.init_process_group("gloo", rank=rank, world_size=world)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    seconds = []
    for step in range(STEPS):
        begun = time.perf_counter()
        for micro_batch in range(MICRO_BATCHES):
            ids = torch.randint(PIECES, (ROWS, LENGTH))
            masked = torch.randperm(ROWS * LENGTH)[: ROWS * LENGTH * 15 // 100]
            last = micro_batch == MICRO_BATCHES - 1
            if world > 1:
                model.require_backward_grad_sync = last
            (model(ids, masked, ids.flatten()[masked]) / MICRO_BATCHES).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begun)
    if rank == 0:
        print(f"{statistics.median(seconds[1:]):.3f}", flush=True)


if __name__ == "__main__":
    main()
