"""Compares `lambert plan --machine here` with runs of the same configuration.

    python docs/experiments/plan/compare.py CONFIG PAIRS STEPS

Each of the pairs is a plan and then a run of STEPS steps. `lambert` must be on the path. Prints the ratios of estimate and
measurement, and their medians.
"""

import json
import statistics
import subprocess
import sys
import tempfile

config, pairs, steps = sys.argv[1], int(sys.argv[2]), sys.argv[3]
NONE = "1000000"
SETTINGS = [f"stage.0.steps={steps}", f"evaluation.every_steps={NONE}", f"checkpoint.every_steps={NONE}"]


def lambert(*arguments):
    return subprocess.run(["lambert", *arguments], check=True, capture_output=True, text=True).stdout


ratios = []
for pair in range(pairs):
    stage = json.loads(lambert("plan", "--config", config, "--machine", "here", "--json"))["stages"][0]
    with tempfile.TemporaryDirectory() as folder:
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        lines = lambert("run", "--config", config, "--run", f"{folder}/run", "--json", *sets).splitlines()
    records = [record for record in map(json.loads, lines) if "loss" in record]
    # The first two steps include the start of threads and of the loader.
    seconds = statistics.mean(record["seconds"] for record in records[2:])
    memory = max(record["peak_memory"] for record in records)
    planned = stage["time"]["step_seconds"], stage["memory"]["host_bytes"]
    ratios.append((planned[0] / seconds, planned[1] / memory))
    print(f"pair {pair}: step {planned[0]:.3f} s planned, {seconds:.3f} s measured, ratio {ratios[-1][0]:.3f}; ", end="")
    print(f"memory {planned[1] / 1e6:.0f} MB planned, {memory / 1e6:.0f} MB measured, ratio {ratios[-1][1]:.3f}", flush=True)
for name, values in zip(("time", "memory"), zip(*ratios)):
    print(f"{name}: median ratio {statistics.median(values):.3f}, from {min(values):.3f} to {max(values):.3f}")
