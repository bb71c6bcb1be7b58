"""Seconds of a step against the rate of the link, as CSV and as SVG.

    python plot.py --output links < LOG

LOG is what `a_step_over_links_of_any_speed` prints; its lines `links,MBIT,WIRE,OVERLAP,STEP,EXPOSED` are taken. Needs matplotlib.
"""

import argparse
import csv
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="without its ending")
    arguments = parser.parse_args()
    rows = [line.strip().split(",")[1:] for line in sys.stdin if line.startswith("links,")]
    with open(f"{arguments.output}.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["mbit_per_second", "wire", "overlap", "step_seconds", "exposed_seconds"])
        writer.writerows(rows)

    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "links"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for wire, color in (("fp32", "tab:blue"), ("bf16", "tab:orange")):
        for overlap, line in (("false", "--"), ("true", "-")):
            own = [row for row in rows if row[1] == wire and row[2] == overlap]
            label = f"{wire}, {'beside' if overlap == 'true' else 'after'} the backward pass"
            axes.plot([float(row[0]) for row in own], [float(row[3]) for row in own], line, marker="o", color=color, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("link, Mbit/s")
    axes.set_ylabel("a step of BERT-base on two hosts, seconds")
    axes.legend()
    figure.tight_layout()
    figure.savefig(f"{arguments.output}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
