"""Ablations of recipes: optimizers, batch sizes, mask rates and schedules of the rate. Writes results.csv.

    python docs/experiments/recipes/study.py [CELL...]     in a folder with data/; `lambert` must be on the path

Each optimizer is tuned over four rates with seed 1, and so is each schedule. The best rate is then repeated with other seeds. Mask
rates have the best rate of AdamW. The same command again runs only what is missing in results.csv and in runs/. `--table` prints the
table of results.csv.
"""

import csv
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SAMPLES = 32000
ADAMW = {32: ["1e-3", "2e-3", "3e-3", "4e-3"], 256: ["2e-3", "4e-3", "6e-3", "8e-3"]}
LAMB = {32: ["5e-3", "1e-2", "2e-2", "4e-2"], 256: ["7e-3", "1.4e-2", "2.8e-2", "5.6e-2"]}
MUON = {32: ["1e-3", "2e-3", "4e-3", "8e-3"], 256: ["2e-3", "4e-3", "8e-3", "1.6e-2"]}
OPTIMIZERS = {"adamw": ADAMW, "stable-adamw": ADAMW, "muon": MUON, "lamb": LAMB}
BASELINE = "adamw-32"
WSD = ["stage.0.decay=one-minus-sqrt", "stage.0.decay_fraction=0.2"]
# Quantiles of Student's t for a 95 % interval of the mean, by number of seeds.
QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
RATE, SEED = "stage.0.learning_rate", "run.seed"
COLUMNS = ["cell", "settings", "end", "main_loss", "steps", "seconds"]


def results():
    """The finished runs: (cell, rate, seed) to a row of results.csv. Runs of this folder are added to those of the file."""
    rows = []
    if pathlib.Path("results.csv").exists():
        with open("results.csv") as file:
            rows += csv.DictReader(file)
    for path in pathlib.Path("runs").glob("*/tune.csv"):
        with path.open() as file:
            rows += [{**row, "cell": path.parent.name} for row in csv.DictReader(file)]
    finished = {}
    for row in rows:
        settings = dict(word.split("=") for word in row["settings"].split())
        if row["end"] == "finished":
            finished.setdefault((row["cell"], settings[RATE], int(settings.get(SEED, 1))), row)
    return finished


def collect():
    """Writes the finished runs to results.csv, by cell and loss."""
    order = list(CELLS)
    rows = sorted(results().values(), key=lambda row: (order.index(row["cell"]), float(row["main_loss"])))
    with open(f"results.csv.{os.getpid()}", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(file.name, "results.csv")


def run(cell, config, settings, rates, seeds):
    """Runs the rates and seeds that are missing."""
    for seed in seeds:
        missing = [rate for rate in rates if (cell, rate, seed) not in results()]
        if missing:
            words = [word for setting in settings for word in ("--set", setting)]
            words += ["--grid", f"{RATE}={','.join(missing)}", *(["--grid", f"{SEED}={seed}"] if seed != 1 else [])]
            command = ["lambert", "--quiet", "tune", "--config", str(HERE / config), "--runs", f"runs/{cell}", *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            collect()


def best_rate(cell, rates):
    """The rate with the lowest loss with seed 1."""
    finished = results()
    return min(rates, key=lambda rate: float(finished[cell, rate, 1]["main_loss"]))


def tuned(cell, settings, rates, seeds):
    """Tunes the rate with seed 1, and repeats the best one with the other seeds."""
    run(cell, "run.toml", settings, rates, [1])
    run(cell, "run.toml", settings, [best_rate(cell, rates)], seeds)


def optimizer(kind, batch):
    steps = SAMPLES // batch
    settings = [
        f"optimizer.kind={kind}", f"stage.0.global_batch={batch}", f"stage.0.steps={steps}", f"evaluation.every_steps={steps}",
    ]
    cell = f"{kind}-{batch}"
    tuned(cell, settings, OPTIMIZERS[kind][batch], [2, 3, 4, 5] if cell == BASELINE else [2, 3])


def masks(share):
    settings = [f"objective.mask_probability={share}"]
    run(f"masks-{share}", "run.toml", settings, [best_rate(BASELINE, ADAMW[32])], [1, 2, 3])


def scheduled_masks():
    rate = best_rate("wsd", ADAMW[32])
    run("masks-scheduled", "scheduled.toml", [f"stage.1.learning_rate={rate}"], [rate], [1, 2, 3])


CELLS = {f"{kind}-{batch}": (lambda kind=kind, batch=batch: optimizer(kind, batch)) for batch in (32, 256) for kind in OPTIMIZERS}
CELLS |= {"wsd": lambda: tuned("wsd", WSD, ADAMW[32], [2, 3])}
CELLS |= {f"masks-{share}": (lambda share=share: masks(share)) for share in (0.2, 0.3, 0.4)}
CELLS |= {"masks-scheduled": scheduled_masks}


def table():
    """Prints the losses of the rates of each cell, and of the best rate the mean of the seeds with its 95 % interval."""
    print("| cell | losses of the rates, seed 1 | best rate | seeds | mean | minimum to maximum |\n|---|---|---|---|---|---|")
    finished = results()
    for cell in CELLS:
        losses = {}
        for (name, rate, seed), row in finished.items():
            if name == cell:
                losses.setdefault(rate, {})[seed] = float(row["main_loss"])
        if losses:
            best = min(losses, key=lambda rate: losses[rate][1])
            rates = ", ".join(f"{losses[rate][1]:.3f} ({rate})" for rate in sorted(losses, key=float))
            seeds = losses[best].values()
            mean, low, high = sum(seeds) / len(seeds), min(seeds), max(seeds)
            half = QUANTILES[len(seeds)] * statistics.stdev(seeds) / len(seeds) ** 0.5 if len(seeds) > 1 else float("inf")
            print(f"| {cell} | {rates} | {best} | {len(seeds)} | {mean:.3f} ± {half:.3f} | {low:.3f} to {high:.3f} |")


if sys.argv[1:] == ["--table"]:
    table()
    sys.exit()
for name in sys.argv[1:] or CELLS:
    CELLS[name]()
    print(f"{name}: done", flush=True)
collect()
