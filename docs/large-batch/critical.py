"""Samples and updates to a given held-out loss at several batches, and the critical batch (McCandlish et al. 2018), as CSV.

    python critical.py --loss 3.5 [--loss 3.3] BATCH=RUNS.csv ... > critical.csv

RUNS.csv is the table of `lambert tune` (tune.csv) over runs of that batch and of several lengths, each with a cool-down of its own
(critical.sh). Between the two lengths whose held-out losses are on both sides of the given one, the loss is taken as linear in the
logarithm of the samples; nothing is extrapolated, and one batch alone is not fitted. (S / Smin - 1) (E / Emin - 1) = 1 with E = S B
samples is S = Smin (1 + Bcrit / B), with the critical batch Bcrit = Emin / Smin: both by least squares of log S.
"""

import argparse
import csv
import math
import sys


def ends(batch, runs):
    """Samples and held-out loss at the end of each run of a table."""
    with open(runs) as table:
        rows = [row for row in csv.DictReader(table) if row["end"] == "finished"]
    return sorted((int(row["steps"]) * batch, float(row["held_out_loss"])) for row in rows)


def samples_to(points, loss):
    """Where the line between two lengths crosses a loss first; None where none does."""
    for (fewer, above), (more, below) in zip(points, points[1:]):
        if below <= loss < above:
            share = (above - loss) / (above - below)
            return math.exp(math.log(fewer) + share * (math.log(more) - math.log(fewer)))
    return None


def fit(steps):
    """Smin and Bcrit for {batch: steps}."""

    def at(critical):
        logs = [math.log(count) - math.log1p(critical / batch) for batch, count in steps.items()]
        mean = sum(logs) / len(logs)
        return sum((log - mean) ** 2 for log in logs), math.exp(mean), critical

    _, least, critical = min(at(math.exp(index / 1000)) for index in range(0, 12_000))
    return least, critical


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loss", type=float, action="append", required=True)
    parser.add_argument("cells", nargs="+", metavar="BATCH=RUNS.csv")
    arguments = parser.parse_args()
    cells = {int(batch): ends(int(batch), runs) for batch, runs in (cell.split("=", 1) for cell in arguments.cells)}
    writer = csv.writer(sys.stdout)
    writer.writerow(["loss", "batch", "samples", "updates", "fitted_updates", "smallest_updates", "critical_batch"])
    for loss in arguments.loss:
        reached = {batch: samples_to(points, loss) for batch, points in cells.items()}
        steps = {batch: samples / batch for batch, samples in reached.items() if samples}
        least, critical = fit(steps) if len(steps) > 1 else (None, None)
        for batch, samples in reached.items():
            measured = [round(samples), round(steps[batch])] if samples else ["", ""]
            fitted = [round(least * (1 + critical / batch)), round(least), round(critical)] if least else ["", "", ""]
            writer.writerow([loss, batch, *measured, *fitted])


if __name__ == "__main__":
    main()
