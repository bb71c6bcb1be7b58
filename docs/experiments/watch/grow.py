"""Measures `lambert metrics --tensorboard --follow`, which writes event files as the coordinator does, while a run grows.

    python3 grow.py LAMBERT RUN FOLDER ROUNDS

FOLDER gets a run with links to the step records of RUN, a part of them in each round, and the event file. Prints the memory and the
processor time of each round.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time

lambert, source, folder, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
shutil.rmtree(folder, ignore_errors=True)
os.makedirs(f"{folder}/run/metrics")
for name in ["run.toml", "vocab.txt"]:
    shutil.copy(f"{source}/{name}", f"{folder}/run")


def stat(pid):
    """Fields of /proc/PID/stat after the name."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()


# The process of a coordinator that lives.
coordinator = subprocess.Popen(["sleep", "1000000"])
with open("/proc/sys/kernel/random/boot_id") as file:
    since = f"{file.read().strip()}+{stat(coordinator.pid)[19]}"
with open(f"{source}/status.json") as file:
    status = json.load(file)
status["state"] = "training"
status["coordinator"] = {"host": socket.gethostname(), "pid": coordinator.pid, "since": since}
with open(f"{folder}/run/status.json", "w") as file:
    json.dump(status, file)
follower = subprocess.Popen([lambert, "metrics", f"{folder}/run", "--tensorboard", f"{folder}/events", "--follow"])


def written():
    """Size of the event file."""
    files = os.scandir(f"{folder}/events") if os.path.isdir(f"{folder}/events") else []
    return sum(file.stat().st_size for file in files)


def memory(key):
    with open(f"/proc/{follower.pid}/status") as file:
        return next(line.split()[1] for line in file if line.startswith(key))


def used():
    """Processor time, seconds."""
    return sum(int(ticks) for ticks in stat(follower.pid)[11:13]) / os.sysconf("SC_CLK_TCK")


names, seconds = sorted(os.listdir(f"{source}/metrics")), 0.0
for round in range(rounds):
    for name in names[round * len(names) // rounds : (round + 1) * len(names) // rounds]:
        os.link(f"{source}/metrics/{name}", f"{folder}/run/metrics/{name}")
    time.sleep(5)
    before = 0.0
    while used() > before + 0.2:
        before = used()
        time.sleep(4)
    sizes = f"{written()} bytes, VmRSS {memory('VmRSS')} kB, VmHWM {memory('VmHWM')} kB"
    print(f"{sizes}, {used() - seconds:.1f} s", flush=True)
    seconds = used()
follower.kill()
coordinator.kill()
