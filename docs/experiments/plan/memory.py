"""Compares the memory of `lambert plan` with the peak memory of a run.

    python docs/experiments/plan/memory.py CONFIG STEPS

`lambert` must be on the path. Prints the planned bytes and the peak after some of the steps, in MB, with the ratio of both.
"""

import json
import subprocess
import sys
import tempfile

config, steps = sys.argv[1], int(sys.argv[2])
PRINTED = (3, 6, 12, 25, 50, 100, 200)
NONE = "1000000"
SETTINGS = [f"stage.0.steps={steps}", f"evaluation.every_steps={NONE}", f"checkpoint.every_steps={NONE}"]


def lambert(*arguments):
    return subprocess.run(["lambert", *arguments], check=True, capture_output=True, text=True).stdout


planned = json.loads(lambert("plan", "--config", config, "--json"))["stages"][0]["memory"]["host_bytes"]
with tempfile.TemporaryDirectory() as folder:
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    lines = lambert("run", "--config", config, "--run", f"{folder}/run", "--json", *sets).splitlines()
records = [record for record in map(json.loads, lines) if "loss" in record]
print(f"{config}: {planned / 1e6:.0f} MB planned")
peak = 0
for number, record in enumerate(records, 1):
    peak = max(peak, record["peak_memory"])
    if number in PRINTED or number == len(records):
        print(f"step {number}: {peak / 1e6:.0f} MB, ratio {planned / peak:.3f}")
