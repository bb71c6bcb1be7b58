"""Measures the NCCL all-reduce of torch between two processes, each with MEGABYTES of f32 values on the first GPU. Prints the
best time in seconds and the bus bandwidth in GB/s. NCCL treats the two processes as ranks on two hosts.

    reduce.py MEGABYTES
"""

import os
import subprocess
import sys
import time


def rank():
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29771", rank=int(os.environ["RANK"]), world_size=2)
    values = torch.ones(int(float(sys.argv[1]) * 250_000), device="cuda")
    seconds = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        dist.all_reduce(values)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    if os.environ["RANK"] == "0":
        best = min(seconds[5:])
        print("%.4f %.3f" % (best, 4 * values.numel() / best / 1e9))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank()
    else:
        line = [sys.executable, *sys.argv]
        ranks = [subprocess.Popen(line, env={**os.environ, "RANK": str(r), "NCCL_HOSTID": f"rank-{r}"}) for r in range(2)]
        try:
            sys.exit(max(abs(process.wait(timeout=120)) for process in ranks))
        finally:
            for process in ranks:
                process.kill()
