"""Saves a state of ELEMENTS weights and twice as many moments to FOLDER, once for each input line. The line is the name
of the way to save. Each output line has two numbers: the seconds that training would wait, and the seconds until the
state is on the disk."""

import os
import shutil
import sys
import time

import safetensors.torch
import torch
import torch.distributed
import torch.distributed.checkpoint as dcp

elements, folder = int(sys.argv[1]), sys.argv[2]
state = {name: torch.full((elements,), value) for name, value in [("weights", 0.02), ("first", 1e-3), ("second", 1e-6)]}
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
torch.distributed.init_process_group("gloo", rank=0, world_size=1)


def flushed(path):
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


for line in sys.stdin:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    path, start, waits = folder + "/file", time.perf_counter(), None
    match line.strip():
        case "torch.save":
            torch.save(state, path)
            flushed(path)
        case "safetensors save_file":
            safetensors.torch.save_file(state, path)
            flushed(path)
        case "torch dcp save":
            dcp.save(state, checkpoint_id=folder)
        case "torch dcp async_save":
            pending = dcp.async_save(state, checkpoint_id=folder)
            waits = time.perf_counter() - start
            pending.result()
    whole = time.perf_counter() - start
    print(waits or whole, whole, flush=True)
