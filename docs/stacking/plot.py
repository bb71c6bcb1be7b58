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
    """Useful operations of a step, as configs/src/flops.rs counts them; samples are taken for equally long."""
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
        label, runs = arm.split("=")
        arms[label] = [curve(Path(run), seconds) for run in runs.split(",")]

    first = next(iter(arms.values()))
    print("| | final held-out MLM loss | operations | seconds | as low as full depth's end after, of its operations | of its time |")
    print("|---|---|---|---|---|---|")
    for label, curves in arms.items():
        ends = [points[-1] for points in curves]
        share = lambda column: [
            reached(points, full[-1][3], column) / full[-1][column] if reached(points, full[-1][3], column) else None
            for points, full in zip(curves, first)
        ]
        shown = lambda values: ", ".join("never" if value is None else f"{value:.3f}" for value in values)
        print(
            f"| {label} | {', '.join(f'{end[3]:.4f}' for end in ends)} | {ends[0][1]:.3e} | {ends[0][2]:.0f} "
            f"| {shown(share(1))} | {shown(share(2))} |"
        )
    if not arguments.output:
        return
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for axis, column, name, unit in [(axes[0], 1, "operations, 10^12", 1e12), (axes[1], 2, "seconds, one thread", 1)]:
        for label, curves in arms.items():
            x = [statistics.mean(points[column] for points in row) / unit for row in zip(*curves)]
            y = [statistics.mean(points[3] for points in row) for row in zip(*curves)]
            axis.plot(x, y, label=label, marker=".", markersize=4, linewidth=1.2)
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out MLM loss, nats (mean of the seeds)")
    axes[1].legend()
    figure.tight_layout()
    figure.savefig(arguments.output)


if __name__ == "__main__":
    main()
