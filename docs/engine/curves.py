"""The losses of several runs against the samples that they were trained on, as CSV and as SVG.

    python curves.py --output curves LABEL=RUN ...

Writes curves.csv (label, step, samples, mean MLM loss of the samples since the row before, held-out MLM loss) and curves.svg.
Needs matplotlib.
"""

import argparse
import csv
import json
import statistics
from pathlib import Path

SAMPLES = 3200


def records(run):
    """The records of a run's steps, each as the last attempt made it, and its held-out losses by step."""
    steps, held_out = {}, {}
    for file in sorted((run / "metrics").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if record.get("event") == "evaluation":
                held_out[record["step"]] = record["mlm_loss"]
            elif "tokens" in record:
                steps[record["step"]] = record
    return [steps[step] for step in sorted(steps)], held_out


def rows(label, run):
    """A row for each SAMPLES samples or more, and for each evaluation."""
    steps, held_out = records(run)
    samples, before, losses = 0, 0, []
    for record in steps:
        samples += record["samples"]
        losses.append(record["mlm_loss"])
        evaluated = held_out.get(record["step"])
        if samples - before >= SAMPLES or evaluated is not None or record is steps[-1]:
            yield label, record["step"], samples, round(statistics.mean(losses), 4), evaluated and round(evaluated, 4)
            before, losses = samples, []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="without its ending")
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN")
    arguments = parser.parse_args()

    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "curves"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    with open(f"{arguments.output}.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "step", "samples", "mlm_loss", "held_out_mlm_loss"])
        for label, run in (argument.split("=", 1) for argument in arguments.runs):
            table = list(rows(label, Path(run)))
            writer.writerows(table)
            (line,) = axes.plot([row[2] for row in table], [row[3] for row in table], label=label)
            held_out = [(row[2], row[4]) for row in table if row[4] is not None]
            axes.plot(*zip(*held_out), "o--", color=line.get_color(), label=f"{label}, held out")
    axes.set(xlabel="samples", ylabel="MLM loss, nats")
    axes.legend()
    figure.tight_layout()
    figure.savefig(f"{arguments.output}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
