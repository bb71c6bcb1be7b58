"""CPU time of the coordinator relative to its workers.

    python docs/experiments/coordinator/cpu.py CONFIG MINUTES [OPTIONS]

Starts `lambert run --config CONFIG OPTIONS`, waits for 25 seconds, and then prints every half minute the CPU seconds (user and
system) of the coordinator and of all workers since then. At the end it stops the run. `lambert` must be on the path.
"""

import os
import subprocess
import sys
import tempfile
import time

TICKS = os.sysconf("SC_CLK_TCK")


def fields(process):
    """Fields of /proc/PROCESS/stat from the state on."""
    with open(f"/proc/{process}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()


def seconds(process):
    values = fields(process)
    return (int(values[11]) + int(values[12])) / TICKS


def descendants(process):
    listed = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True).stdout.split()
    return [one for child in listed for one in (int(child), *descendants(int(child)))]


def name(process):
    with open(f"/proc/{process}/comm") as file:
        return file.read().strip()


config, minutes, options = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
with tempfile.TemporaryDirectory() as folder:
    command = ["lambert", "run", "--config", config, "--run", f"{folder}/run", "--set", "stage.0.steps=100000", *options]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(25)
    workers = [process for process in descendants(run.pid) if name(process) == "lambert-worker"]
    assert workers, "the run has no workers"
    before = seconds(run.pid), sum(map(seconds, workers))
    for number in range(1, int(2 * minutes) + 1):
        time.sleep(30)
        coordinator, ranks = seconds(run.pid) - before[0], sum(map(seconds, workers)) - before[1]
        share = 100 * coordinator / ranks
        print(f"{number / 2} min: coordinator {coordinator:.2f} s, workers {ranks:.1f} s, {share:.3f} %", flush=True)
    run.terminate()
    run.wait()
