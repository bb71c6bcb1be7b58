"""Speed of the tokenizers library of Python on one thread: `tokenizer.py TOKENIZER.json LINES [ROUNDS]`.

    pip install tokenizers==0.23.3

LINES is a text file. Prints the median of the rounds in MB/s (10^6 bytes).
"""

import os
import pathlib
import statistics
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer  # noqa: E402

tokenizer = Tokenizer.from_file(sys.argv[1])
lines = pathlib.Path(sys.argv[2]).read_text("utf-8").splitlines()
size = sum(len(line.encode()) for line in lines)
rates = []
for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 3):
    start = time.perf_counter()
    for line in range(0, len(lines), 1000):
        tokenizer.encode_batch(lines[line : line + 1000], add_special_tokens=False)
    rates.append(size / 1e6 / (time.perf_counter() - start))
print(f"{statistics.median(rates):.1f} MB/s")
