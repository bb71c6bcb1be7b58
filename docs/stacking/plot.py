"""Held-out loss against operations and against wall-clock, from the records of several runs.

    python plot.py --seconds 1=0.1,2=0.2,4=0.3 --output stacking.svg LABEL=RUN[,RUN...] ...

The runs of a label differ in their seed; the first label is what the others are compared with. Runs beside other work say
little of time, so a step of each depth is counted with the seconds given (measured alone). Needs matplotlib.
"""

import argparse
import json
import statistics
import tomllib
from pathlib import Path


def operations(model, layers, vocabulary, record):
    """Useful operations of a step, as configs/plan/src/flops.rs counts them; samples are taken for equally long."""
    hidden, intermediate = model["hidden"], model["intermediate"]
    length = record["tokens"] / record["samples"]
    token = 8 * hidden**2 + 4 * hidden * intermediate + 4 * length * hidden
    head = record["masked_tokens"] * (2 * hidden**2 + 2 * hidden * vocabulary)
    return 3 * (record["tokens"] * layers * token + head + record["samples"] * 2 * hidden**2)


def curve(run, seconds):
    """The steps, operations, seconds and held-out losses of a run's evaluations."""
    config = tomllib.loads((run / "run.toml").read_text())
    vocabulary = len((run / "vocab.txt").read_text().splitlines())
    depths = [stage.get("layers", config["model"]["layers"]) for stage in config["stage"] for _ in range(stage["steps"])]
    steps, losses = {}, {}
    for file in sorted((run / "metrics").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if record.get("event") == "evaluation":
                losses[record["step"]] = record["mlm_loss"]
            elif "tokens" in record:
                steps[record["step"]] = record
    assert max(steps) == len(depths), f"{run} is not at its end"
    work, time, points = 0.0, 0.0, []
    for step, depth in enumerate(depths, start=1):
        work += operations(config["model"], depth, vocabulary, steps[step])
        time += seconds[depth]
        if step in losses:
            points.append((step, work, time, losses[step]))
    return points


def mean(curves):
    """The mean of the seeds, at the steps that all have."""
    seeds = [{point[0]: point for point in points} for points in curves]
    steps = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return [tuple(statistics.mean(seed[step][field] for seed in seeds) for field in range(4)) for step in steps]


def reached(points, loss, column):
    """Where on the line between evaluations a loss is reached first; None if it never is."""
    for before, now in zip(points, points[1:]):
        if now[3] <= loss:
            share = (before[3] - loss) / (before[3] - now[3])
            return before[column] + share * (now[column] - before[column])
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", required=True, help="seconds of a step by depth: 1=0.1,2=0.2")
    parser.add_argument("--output", help="an SVG file")
    parser.add_argument("arms", nargs="+", metavar="LABEL=RUN[,RUN]")
    arguments = parser.parse_args()
    pairs = (pair.split("=") for pair in arguments.seconds.split(","))
    seconds = {int(depth): float(value) for depth, value in pairs}
    arms = {}
    for arm in arguments.arms:
        label, runs = arm.split("=", 1)
        arms[label] = [curve(Path(run), seconds) for run in runs.split(",")]

    # Each seed, and the mean of the seeds.
    rows = {label: [*curves, mean(curves)] for label, curves in arms.items()}
    full = next(iter(rows.values()))
    print("| | final held-out MLM loss: seeds, mean | operations | seconds | full depth's end is reached after, of its time |")
    print("|---|---|---|---|---|")
    for label, curves in rows.items():
        shares = [
            (time := reached(points, whole[-1][3], 2)) and time / whole[-1][2] for points, whole in zip(curves, full)
        ]
        losses = ", ".join(f"{points[-1][3]:.4f}" for points in curves)
        shown = ", ".join("never" if share is None else f"{share:.3f}" for share in shares)
        print(f"| {label} | {losses} | {curves[0][-1][1]:.3e} | {curves[0][-1][2]:.0f} | {shown} |")
    if not arguments.output:
        return
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # The whole curves above, their ends below.
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), sharex="col", sharey="row")
    lowest = min(points[-1][3] for curves in arms.values() for points in curves)
    for column, name, unit in [(1, "operations, 10^12", 1e12), (2, "seconds, one thread", 1)]:
        for axis in axes[:, column - 1]:
            for label, curves in arms.items():
                points = mean(curves)
                x, y = [point[column] / unit for point in points], [point[3] for point in points]
                axis.plot(x, y, label=label, marker=".", markersize=4, linewidth=1.2)
            axis.grid(alpha=0.3)
        axes[1, column - 1].set_xlabel(name)
        axes[1, column - 1].set_ylim(lowest - 0.02, lowest + 0.5)
    axes[0, 0].set_ylabel("held-out MLM loss, nats (mean of the seeds)")
    axes[0, 1].legend()
    figure.tight_layout()
    figure.savefig(arguments.output)


if __name__ == "__main__":
    main()
