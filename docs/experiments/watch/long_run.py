"""Writes a run of many steps for measurements of `lambert watch`, with the first step record of a run as the pattern.

    python3 long_run.py RUN STEPS FOLDER
"""

import json
import math
import os
import random
import shutil
import sys

PER_OBJECT = 2000
run, steps, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.makedirs(f"{folder}/metrics")
for name in ["run.toml", "vocab.txt", "status.json"]:
    shutil.copy(f"{run}/{name}", folder)
first = sorted(os.listdir(f"{run}/metrics"))[0]
with open(f"{run}/metrics/{first}") as file:
    record = json.loads(file.readline())
random.seed(1)
for start in range(0, steps, PER_OBJECT):
    lines = []
    for step in range(start + 1, min(start + PER_OBJECT, steps) + 1):
        loss = 2 + 8 * math.exp(-6 * step / steps) + random.gauss(0, 0.15)
        record.update(
            step=step,
            loss=loss + 0.6,
            mlm_loss=loss,
            learning_rate=5e-4 * (1 - step / steps),
            grad_norm=abs(random.gauss(1, 0.2)),
            seconds=0.5 + random.random() * 0.05,
            forward_backward=0.4 + random.random() * 0.03,
        )
        lines.append(json.dumps(record, separators=(",", ":")))
    with open(f"{folder}/metrics/attempt-0001-from-{start:09}.jsonl", "w") as file:
        file.write("\n".join(lines) + "\n")
