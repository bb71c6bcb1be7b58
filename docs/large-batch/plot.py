"""Held-out loss at the end against the learning rate, a line for each cell, from the tables of lambert tune.

    python plot.py --output rates.svg results/adamw-16.csv results/lamb-256.csv ...

A rate with several seeds is drawn at their mean, with a bar from the least to the greatest. Losses above --highest are drawn at the
upper edge, with a mark of their own: these runs never left the plateau. Needs matplotlib.
"""

import argparse
import csv
import statistics
from pathlib import Path

RATE = "stage.0.learning_rate"


def points(table):
    """Rates and the losses of their runs that finished, by rate."""
    found = {}
    with open(table, newline="") as file:
        for row in csv.DictReader(file):
            settings = dict(setting.split("=", 1) for setting in row["settings"].split())
            if row["end"] == "finished" and RATE in settings:
                found.setdefault(float(settings[RATE]), []).append(float(row["held_out_loss"]))
    return sorted(found.items())


def main():
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "lambert", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--highest", type=float, default=4.0)
    parser.add_argument("tables", nargs="+")
    arguments = parser.parse_args()
    optimizers = sorted({Path(table).stem.split("-")[0] for table in arguments.tables})
    figure, axes = pyplot.subplots(1, len(optimizers), sharey=True, figsize=(4.2 * len(optimizers), 4.6), squeeze=False)
    for axis, optimizer in zip(axes[0], optimizers):
        tables = [table for table in arguments.tables if Path(table).stem.split("-")[0] == optimizer]
        for table in sorted(tables, key=lambda table: (int(Path(table).stem.split("-")[1]), table)):
            runs = points(table)
            rates = [rate for rate, _ in runs]
            means = [min(statistics.mean(losses), arguments.highest) for _, losses in runs]
            below = [max(mean - min(losses), 0) for mean, (_, losses) in zip(means, runs)]
            above = [max(min(max(losses), arguments.highest) - mean, 0) for mean, (_, losses) in zip(means, runs)]
            batch, *changed = Path(table).stem.split("-", 1)[1].split("-", 1)
            label = f"{int(batch):,}" + "".join(f": {change}" for change in changed).replace("-", " ")
            bars = axis.errorbar(rates, means, [below, above], marker="o", markersize=3.5, capsize=2, label=label)
            stuck = [rate for rate, losses in runs if min(losses) > arguments.highest]
            axis.plot(stuck, [arguments.highest] * len(stuck), "x", color=bars[0].get_color())
        axis.set(xscale="log", xlabel="learning rate, thousandths", title={"adamw": "AdamW", "lamb": "LAMB"}.get(optimizer, optimizer))
        rates = sorted({rate for table in tables for rate, _ in points(table)})
        axis.set_xticks(rates, [f"{1000 * rate:g}" for rate in rates])
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
        axis.legend(title="batch", fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    axes[0][0].set_ylabel("held-out loss, nats")
    figure.tight_layout()
    figure.savefig(arguments.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
