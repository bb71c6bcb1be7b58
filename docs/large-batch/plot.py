"""Held-out loss at the end against the learning rate, a line for each cell, from the tables of lambert tune.

    python plot.py --output rates.svg results/adamw-16.csv results/lamb-256.csv ...

Losses above --highest are drawn at the upper edge, with a mark of their own: these runs never left the plateau. Needs matplotlib.
"""

import argparse
import csv
from pathlib import Path

RATE = "stage.0.learning_rate"


def points(table):
    """Rates and losses of the runs of a table that finished, by rate."""
    found = []
    with open(table, newline="") as file:
        for row in csv.DictReader(file):
            settings = dict(setting.split("=", 1) for setting in row["settings"].split())
            if row["end"] == "finished" and RATE in settings:
                found.append((float(settings[RATE]), float(row["held_out_loss"])))
    return sorted(found)


def main():
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "lambert", "font.size": 9})
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--highest", type=float, default=4.0)
    parser.add_argument("tables", nargs="+")
    arguments = parser.parse_args()
    optimizers = sorted({Path(table).stem.split("-")[0] for table in arguments.tables})
    figure, axes = pyplot.subplots(1, len(optimizers), sharey=True, figsize=(4.2 * len(optimizers), 3.6), squeeze=False)
    for axis, optimizer in zip(axes[0], optimizers):
        tables = [table for table in arguments.tables if Path(table).stem.split("-")[0] == optimizer]
        for table in sorted(tables, key=lambda table: (int(Path(table).stem.split("-")[1]), table)):
            runs = points(table)
            drawn = [(rate, min(loss, arguments.highest)) for rate, loss in runs]
            (line,) = axis.plot(*zip(*drawn), marker="o", markersize=3.5, label=Path(table).stem.split("-", 1)[1])
            stuck = [rate for rate, loss in runs if loss > arguments.highest]
            axis.plot(stuck, [arguments.highest] * len(stuck), "x", color=line.get_color())
        axis.set(xscale="log", xlabel="learning rate, thousandths", title={"adamw": "AdamW", "lamb": "LAMB"}.get(optimizer, optimizer))
        rates = sorted({rate for table in tables for rate, _ in points(table)})
        axis.set_xticks(rates, [f"{1000 * rate:g}" for rate in rates])
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
        axis.legend(title="batch", fontsize=7)
    axes[0][0].set_ylabel("held-out loss, nats")
    figure.tight_layout()
    figure.savefig(arguments.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
