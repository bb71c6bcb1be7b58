"""Evaluates the step records of a run. RUN is a folder.

    records.py apart RUN OTHER        largest relative difference between the losses of two runs over all steps
    records.py rate RUN BYTES RANKS   fastest all-reduce of BYTES over n = RANKS ranks: its duration in seconds, and its bus
                                      bandwidth as nccl-tests defines it, 2 * (n - 1) / n * BYTES / duration, in GB/s
"""

import glob
import json
import sys


def steps(run):
    """Returns the last record of each step, by step number."""
    found = {}
    for name in sorted(glob.glob(f"{run}/metrics/attempt-*.jsonl")):
        with open(name) as file:
            found.update((record["step"], record) for record in map(json.loads, file))
    return found


def apart(run, other):
    one, two = steps(run), steps(other)
    if not one or one.keys() != two.keys():
        sys.exit(f"{len(one)} and {len(two)} steps, which are not the same")
    print("%.1e" % max(abs(two[step]["loss"] / record["loss"] - 1) for step, record in one.items()))


def rate(run, size, ranks):
    size, ranks = float(size), int(ranks)
    seconds = sorted(record["communication"] for record in steps(run).values())
    if not seconds:
        sys.exit("no steps")
    print("%.4f %.3f" % (seconds[0], 2 * (ranks - 1) / ranks * size / seconds[0] / 1e9))


if __name__ == "__main__":
    {"apart": apart, "rate": rate}[sys.argv[1]](*sys.argv[2:])
