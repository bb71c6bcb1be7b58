"""Ablations of recipes: optimizers, batch sizes, mask rates and schedules of the rate. Writes results.csv.

    python docs/experiments/recipes/study.py [CELL...]     in a folder with data/; `lambert` must be on the path

Each optimizer is tuned over three rates with seed 1, and so is each schedule. The best rate is then repeated with other seeds. Mask
rates have the best rate of AdamW. After a kill, the same command resumes and runs only what is missing. `--table` prints the table of
results.csv.
"""

import csv
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SAMPLES = 32000
ADAMW = {32: ["1e-3", "2e-3", "4e-3"], 256: ["2e-3", "4e-3", "8e-3"]}
LAMB = {32: ["5e-3", "1e-2", "2e-2"], 256: ["7e-3", "1.4e-2", "2.8e-2"]}
OPTIMIZERS = {"adamw": ADAMW, "stable-adamw": ADAMW, "muon": ADAMW, "lamb": LAMB}
BASELINE = "adamw-32"
WSD = ["stage.0.decay=one-minus-sqrt", "stage.0.decay_fraction=0.2"]


def tune(cell, config, settings, *grids):
    """Runs what is missing; returns all runs of the cell so far."""
    words = [word for setting in settings for word in ("--set", setting)]
    words += [word for grid in grids for word in ("--grid", grid)]
    command = ["lambert", "--quiet", "tune", "--config", str(HERE / config), "--runs", f"runs/{cell}", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(f"runs/{cell}/tune.csv") as file:
        return list(csv.DictReader(file))


def best_rate(runs):
    finished = [run for run in runs if run["end"] == "finished"]
    best = min(finished, key=lambda run: float(run["main_loss"]))["settings"]
    return best.split("learning_rate=")[1].split()[0]


def tuned(cell, settings, rates, seeds):
    """Tunes the rate with seed 1, and repeats the best one with the other seeds."""
    rate = best_rate(tune(cell, "run.toml", settings, "stage.0.learning_rate=" + ",".join(rates)))
    return tune(cell, "run.toml", settings, f"stage.0.learning_rate={rate}", "run.seed=" + ",".join(map(str, seeds)))


def optimizer(kind, batch):
    steps = SAMPLES // batch
    settings = [
        f"optimizer.kind={kind}", f"stage.0.global_batch={batch}", f"stage.0.steps={steps}", f"evaluation.every_steps={steps}",
    ]
    cell = f"{kind}-{batch}"
    return tuned(cell, settings, OPTIMIZERS[kind][batch], [2, 3, 4, 5] if cell == BASELINE else [2, 3])


def baseline_rate():
    return best_rate(tune(BASELINE, "run.toml", ["optimizer.kind=adamw"], "stage.0.learning_rate=" + ",".join(ADAMW[32])))


def masks(share):
    settings = [f"objective.mask_probability={share}"]
    return tune(f"masks-{share}", "run.toml", settings, f"stage.0.learning_rate={baseline_rate()}", "run.seed=1,2,3")


def scheduled_masks():
    rate = best_rate(tune("wsd", "run.toml", WSD, "stage.0.learning_rate=" + ",".join(ADAMW[32])))
    settings = [f"stage.{index}.learning_rate={rate}" for index in range(2)]
    return tune("masks-scheduled", "scheduled.toml", settings, "run.seed=1,2,3")


CELLS = {f"{kind}-{batch}": (lambda kind=kind, batch=batch: optimizer(kind, batch)) for batch in (32, 256) for kind in OPTIMIZERS}
CELLS |= {"wsd": lambda: tuned("wsd", WSD, ADAMW[32], [2, 3])}
CELLS |= {f"masks-{share}": (lambda share=share: masks(share)) for share in (0.2, 0.3, 0.4)}
CELLS |= {"masks-scheduled": scheduled_masks}


def collect():
    """Writes the finished runs of all cells."""
    rows = []
    for cell in CELLS:
        path = pathlib.Path(f"runs/{cell}/tune.csv")
        for run in csv.DictReader(path.open()) if path.exists() else []:
            rows.append({"cell": cell, **{name: run[name] for name in ("settings", "end", "main_loss", "steps", "seconds")}})
    if rows:
        with open("results.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


def table():
    """Prints the rates and losses of each cell; of the best rate the mean, minimum and maximum of the seeds."""
    print("| cell | losses of the rates, seed 1 | best rate | seeds | mean | minimum to maximum |\n|---|---|---|---|---|---|")
    with open("results.csv") as file:
        rows = list(csv.DictReader(file))
    for cell in CELLS:
        losses = {}
        for row in rows:
            settings = dict(word.split("=") for word in row["settings"].split())
            rate = settings.get("stage.0.learning_rate", "")
            if row["cell"] == cell and row["end"] == "finished":
                losses.setdefault(rate, {})[settings.get("run.seed", "1")] = float(row["main_loss"])
        if losses:
            best = min(losses, key=lambda rate: losses[rate]["1"])
            rates = ", ".join(f"{losses[rate]['1']:.3f} ({rate or '-'})" for rate in sorted(losses, key=lambda rate: float(rate or 0)))
            seeds = losses[best].values()
            mean, low, high = sum(seeds) / len(seeds), min(seeds), max(seeds)
            print(f"| {cell} | {rates} | {best or '-'} | {len(seeds)} | {mean:.3f} | {low:.3f} to {high:.3f} |")


if sys.argv[1:] == ["--table"]:
    table()
    sys.exit()
for name in sys.argv[1:] or CELLS:
    print(f"{name}: {len(CELLS[name]())} runs", flush=True)
    collect()
