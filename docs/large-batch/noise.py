"""The gradient noise scale of runs with `metrics.noise_scale_every_steps`, in windows of their samples, as CSV.

    python noise.py [--windows N] LABEL=RUN ... > noise.csv

A row for each window: its last step and sample, the mean training loss, the means of |G|^2 and tr(S), their ratio in samples, and
a 90 % interval of the ratio from 1,000 bootstrap draws of the window's estimates.
"""

import argparse
import csv
import json
import random
import statistics
import sys
from pathlib import Path


def records(run):
    """The records of a run's steps, each as the last attempt made it."""
    steps = {}
    for file in sorted((run / "metrics").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if "tokens" in record:
                steps[record["step"]] = record
    return [steps[step] for step in sorted(steps)]


def scale(estimates):
    gradient = statistics.mean(estimate["gradient"] for estimate in estimates)
    variance = statistics.mean(estimate["variance"] for estimate in estimates)
    return gradient, variance, variance / gradient if gradient > 0 else float("inf")


def rows(label, run, windows):
    steps = records(Path(run))
    samples = 0
    for record in steps:
        samples += record["samples"]
        record["until"] = samples
    for window in range(windows):
        part = steps[len(steps) * window // windows : len(steps) * (window + 1) // windows]
        estimates = [record["noise"] for record in part if "noise" in record]
        if not estimates:
            continue
        gradient, variance, ratio = scale(estimates)
        draw = random.Random(window)
        ratios = sorted(scale(draw.choices(estimates, k=len(estimates)))[2] for _ in range(1000))
        loss = statistics.mean(record["loss"] for record in part)
        yield [label, part[-1]["step"], part[-1]["until"], f"{loss:.4f}", len(estimates), f"{gradient:.3e}",
               f"{variance:.3e}", f"{ratio:.0f}", f"{ratios[50]:.0f}", f"{ratios[949]:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN")
    arguments = parser.parse_args()
    writer = csv.writer(sys.stdout)
    writer.writerow(["run", "step", "samples", "loss", "estimates", "gradient", "variance", "scale", "low", "high"])
    for label, run in (argument.split("=", 1) for argument in arguments.runs):
        writer.writerows(rows(label, run, arguments.windows))


if __name__ == "__main__":
    main()
