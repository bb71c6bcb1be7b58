"""Kills the ranks of a run on this host, or with LAST (any value) only the rank that was started last.

    python kill_ranks.py RUN [LAST]

Prints the number of killed ranks."""

import os
import signal
import sys

found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            words = file.read().split("\0")
    except OSError:
        continue
    if words[0].endswith("lambert-worker") and "train" in words and sys.argv[1] in words:
        found.append(int(pid))
killed = sorted(found)[-1 if len(sys.argv) > 2 else 0 :]
for pid in killed:
    os.kill(pid, signal.SIGKILL)
print(len(killed))
