"""Trains a small model of each family with the same FLOPs and writes results.csv.

    python docs/experiments/families/study.py [FAMILY...]     in a folder with data/; `lambert` must be on the path

Each family is tuned over RATES with seed 1. The best rate is then repeated with the other seeds. After a kill, the same command
resumes and runs only what is missing.
"""

import csv
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = str(HERE / "run.toml")
RATES, SEEDS = ["1e-3", "2e-3"], [2, 3]
SHAPES = {
    "bert": [],
    "roberta": [],
    "albert": ["model.embedding=32"],
    "electra": ["model.hidden=64", "model.heads=1", "model.intermediate=256", "model.embedding=128"],
    "distilbert": [],
    "modernbert": [
        "model.intermediate=336", "model.attention_window=16", "model.global_attention_every=2", "model.attention_output_dropout=0.0",
    ],
    "deberta-v2": ["model.position_buckets=32"],
}


def lambert(*arguments):
    return subprocess.run(["lambert", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def with_sets(settings):
    return [word for setting in settings for word in ("--set", setting)]


def stage(settings):
    return json.loads(lambert("plan", "--config", CONFIG, "--machine", "a100", "--json", *with_sets(settings)))["stages"][0]


def tune(family, settings, *grids):
    """Runs what is missing; returns all runs of the family so far."""
    words = [word for grid in grids for word in ("--grid", grid)]
    lambert("--quiet", "tune", "--config", CONFIG, "--runs", f"runs/{family}", *with_sets(settings), *words)
    with open(f"runs/{family}/tune.csv") as file:
        return list(csv.DictReader(file))


budget = stage([])["flops"]
results = pathlib.Path("results.csv")
rows = list(csv.DictReader(results.open())) if results.exists() else []
for family in sys.argv[1:] or SHAPES:
    settings = [f"model.family={family}", *SHAPES[family]]
    planned = stage(settings)
    steps = round(budget / (planned["flops"] / planned["steps"]))
    settings += [f"stage.0.steps={steps}", f"evaluation.every_steps={steps // 4}"]
    finished = [run for run in tune(family, settings, "stage.0.learning_rate=" + ",".join(RATES)) if run["end"] == "finished"]
    best = min(finished, key=lambda run: float(run["main_loss"]))["settings"].split("learning_rate=")[1].split()[0]
    runs = tune(family, settings, f"stage.0.learning_rate={best}", "run.seed=" + ",".join(map(str, SEEDS)))
    rows = [row for row in rows if row["family"] != family]
    for run in runs:
        shown = {name: run[name] for name in ("settings", "end", "main_loss", "steps", "seconds")}
        rows.append({"family": family, "parameters": planned["parameters"], **shown})
    with results.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    print(f"{family}: {steps} steps, {len(runs)} runs", flush=True)
