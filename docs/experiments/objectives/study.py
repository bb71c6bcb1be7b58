"""Compares pre-training objectives: same encoder, corpus and FLOPs, then the same short masked-language phase with a new head.

    python docs/experiments/objectives/study.py [--jobs N]     in a folder with data/ and vocab.txt
    python docs/experiments/objectives/study.py --table        prints the table of results.csv

`lambert` must be on the path; the packages pyarrow and safetensors are needed. results.csv has one line a run, written when the run
ends. The same command again runs only what is missing from results.csv.

Each row of the table is tuned over RATES with seed 1, by the loss after the second phase, and repeated with other seeds.
"""

import concurrent.futures
import csv
import json
import math
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 2000
RATES = ["1e-3", "2e-3"]
HALF = ["model.layers=2"]
TEACHER = {  # without a number of layers to copy, the student would start from random weights
    "temperature": 2.0, "layers": [0, 2],
}
ROWS = {
    "MLM": [],
    "whole words": ["objective.mask_unit=word"],
    "spans": ["objective.mask_unit=span"],
    "spans with boundary": ["objective.mask_unit=span", "objective.span_boundary_weight=1.0"],
    "ELECTRA": ["objective.replaced_tokens={generator_hidden=32,generator_heads=1}"],
    "MLM, half depth": HALF,
    "distillation, half depth": HALF,
}
SEEDS = {"MLM": 5}
COLUMNS = ["row", "rate", "seed", "steps", "flops", "loss", "templates", "real text", "seconds"]
LOCK, TEACHERS = threading.Lock(), threading.Lock()


def lambert(*words):
    return subprocess.run(["lambert", "--quiet", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def sets(values):
    return [word for value in values for word in ("--set", value)]


def planned(settings):
    stage = json.loads(lambert("plan", "--config", str(HERE / "run.toml"), "--json", *sets(settings)))["stages"][0]
    return stage["flops"] / stage["steps"]


def without_heads(folder):
    """Removes the heads from an exported model, so that every encoder gets a new one."""
    from safetensors.numpy import load_file, save_file

    file = f"{folder}/model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if name.startswith("electra.")}
    save_file(kept, file, metadata={"format": "pt"})
    config = pathlib.Path(folder, "config.json")
    keys = json.loads(config.read_text())
    config.write_text(json.dumps(keys | {"architectures": ["ElectraForMaskedLM"]}))


def pretrain(row, rate, seed):
    """Trains with an objective. Returns the name of the run, its settings, its steps and the FLOPs of a step. Only resumes or checks
    a run that exists.
    """
    settings = list(ROWS[row])
    name = f"runs/{row}-{rate}-{seed}".replace(" ", "-").replace(",", "")
    if row.startswith("distillation"):
        with TEACHERS:
            teacher = pretrain("MLM", best("MLM"), seed)[0]
        values = ",".join(f"{key}={json.dumps(value)}" for key, value in TEACHER.items())
        settings.append(f'objective.teacher={{from="{teacher}",{values}}}')
    flops = planned(settings)
    steps = round(STEPS * planned([]) / flops)
    settings += [f"stage.0.steps={steps}", f"stage.0.learning_rate={rate}", f"run.seed={seed}"]
    lambert("run", "--config", str(HERE / "run.toml"), "--run", name, *sets(settings))
    return name, settings, steps, flops


def run(row, rate, seed):
    """Trains, exchanges the head, trains the second phase, and scores sentences."""
    name, settings, steps, flops = pretrain(row, rate, seed)
    seconds = sum(json.loads(line).get("seconds", 0.0) for line in lambert("metrics", name).splitlines())
    exported, start, judged = f"{name}-exported", f"{name}-start", f"{name}-judged"
    for folder in (exported, start):
        shutil.rmtree(folder, ignore_errors=True)
    lambert("export", name, "--output", exported)
    without_heads(exported)
    lambert("import", exported, "--init-missing", "mlm-head", "--output", start)
    base = json.loads(lambert("checkpoint", "list", start, "--json").splitlines()[0])["name"]
    layers = [value for value in settings if value.startswith("model.layers")]
    words = sets([*layers, f"run.seed={seed}"])
    lambert("run", "--config", str(HERE / "judge.toml"), "--run", judged, "--from", f"{start}/checkpoints/{base}", *words)
    records = [json.loads(line) for line in lambert("metrics", judged).splitlines()]
    loss = [record["mlm_loss"] for record in records if record.get("event") == "evaluation"][-1]
    accuracies = {name: accuracy(judged, pairs) for name, pairs in sentences().items()}
    for folder in (exported, start):
        shutil.rmtree(folder)
    result = {"row": row, "rate": rate, "seed": seed, "steps": steps, "flops": f"{flops * steps:.4e}", "loss": f"{loss:.4f}",
              **{name: f"{share:.4f}" for name, share in accuracies.items()}, "seconds": round(seconds)}
    with LOCK:
        add(result)
    print(result, flush=True)


# Subject-verb agreement: the model must give the right sentence of a pair a higher pseudo-log-likelihood.

NOUNS = ["man", "woman", "house", "child", "king", "friend", "letter", "hand", "door", "word", "day", "lady", "boy", "girl", "book"]
PLURALS = {"man": "men", "woman": "women", "child": "children", "lady": "ladies"}
VERBS = [("was", "were"), ("is", "are"), ("has", "have")]
ENDS = {"was": "very old .", "is": "in the house .", "has": "been here ."}


def plural(noun):
    return PLURALS.get(noun, noun + "s")


def templates():
    """Pairs from templates: the subject, perhaps another noun of the other number, and the verb."""
    pairs = []
    for noun in NOUNS:
        for other in (None, *NOUNS[:4]):
            if other == noun:
                continue
            for singular, several in VERBS:
                between = lambda number: "" if other is None else f" of the {plural(other) if number == 1 else other}"
                end = ENDS[singular]
                for number, subject in ((1, noun), (2, plural(noun))):
                    right, wrong = (singular, several) if number == 1 else (several, singular)
                    start = f"the {subject}{between(number)}"
                    pairs.append((f"{start} {right} {end}", f"{start} {wrong} {end}"))
    return pairs


def real():
    """Pairs from the held-out samples: a sentence with one of the verbs, and the same with the other number."""
    import pyarrow.parquet

    tokens = pathlib.Path("vocab.txt").read_text(encoding="utf-8").splitlines()
    other = {word: partner for pair in VERBS for word, partner in (pair, pair[::-1])}
    found = []
    for shard in sorted(pathlib.Path("data/held-out").glob("*.parquet")):
        for ids in pyarrow.parquet.read_table(shard)["input_ids"].to_pylist():
            text = " ".join(tokens[number] for number in ids).replace(" ##", "")
            for sentence in text.replace("[SEP]", "").replace("[CLS]", "").split(" . ")[1:-1]:
                words = sentence.split()
                places = [index for index, word in enumerate(words) if word in other]
                # Sentences with one verb, with at least three words before it.
                if 6 <= len(words) <= 16 and len(places) == 1 and places[0] >= 3 and "[UNK]" not in words:
                    changed = list(words)
                    changed[places[0]] = other[words[places[0]]]
                    found.append((words[places[0]], f"{sentence} .", " ".join(changed) + " ."))
    # As many of each verb as of its partner, so that a preference for one of them gives half of the pairs.
    rng, pairs = random.Random(1), []
    for pair in VERBS:
        lists = [sorted({(right, wrong) for verb, right, wrong in found if verb == word}) for word in pair]
        count = min(100, *map(len, lists))
        pairs += [item for items in lists for item in rng.sample(items, count)]
    return pairs


CACHED = {}


def sentences():
    with LOCK:
        if not CACHED:
            CACHED.update({"templates": templates(), "real text": real()})
    return CACHED


def accuracy(url, pairs):
    """Share of the pairs whose right sentence has the higher pseudo-log-likelihood."""
    file = f"{url}-sentences.txt"
    pathlib.Path(file).write_text("".join(f"{right}\n{wrong}\n" for right, wrong in pairs))
    lines = [json.loads(line) for line in lambert("score", url, "--input", file, "--json").splitlines()]
    scores = [line["log_likelihood"] for line in lines]
    return sum(right > wrong for right, wrong in zip(scores[::2], scores[1::2])) / len(pairs)


def results():
    file = pathlib.Path("results.csv")
    return list(csv.DictReader(file.open())) if file.exists() else []


def add(result):
    file = pathlib.Path("results.csv")
    is_new = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(result)


def best(row):
    """Rate with the lower loss with seed 1."""
    tried = {run["rate"]: float(run["loss"]) for run in results() if run["row"] == row and run["seed"] == "1"}
    return min(tried, key=tried.get)


def study(jobs):
    done = lambda: {(run["row"], run["rate"], run["seed"]) for run in results()}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        def all_of(cells):
            missing = [cell for cell in cells if tuple(map(str, cell)) not in done()]
            list(pool.map(lambda cell: run(*cell), missing))

        # The students come right after their teachers, which are runs of MLM.
        for row in ["MLM", *reversed([row for row in ROWS if row != "MLM"])]:
            all_of([(row, rate, 1) for rate in RATES])
            all_of([(row, best(row), seed) for seed in range(1, 1 + SEEDS.get(row, 3))])


# 97.5 % points of Student's t distribution, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def interval(values):
    mean, count = statistics.mean(values), len(values)
    if count < 2:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {STUDENT[count - 1] * statistics.stdev(values) / math.sqrt(count):.3f}"


def resolvable(baseline, count):
    """Smallest difference between the means of `baseline` and of `count` other runs that differs from 0 with 95% confidence, if both
    have the spread of `baseline`.
    """
    size = len(baseline)
    return STUDENT[size - 1] * statistics.stdev(baseline) * math.sqrt(1 / size + 1 / count)


def table():
    runs = list(csv.DictReader((HERE / "results.csv").open()))
    limits = []
    print("| objective | updates | loss at each rate, seed 1 | seeds | held-out MLM loss | agreement, templates | agreement, real text |")
    print("|---|---|---|---|---|---|---|")
    for row in ROWS:
        own = [run for run in runs if run["row"] == row]
        tried = {run["rate"]: float(run["loss"]) for run in own if run["seed"] == "1"}
        if not tried:
            continue
        rate = min(tried, key=tried.get)
        own = [run for run in own if run["rate"] == rate]
        columns = [[float(run[column]) for run in own] for column in ("loss", "templates", "real text")]
        losses = ", ".join(f"{tried[rate]:.3f} ({rate})" for rate in RATES if rate in tried)
        print(f"| {row} | {own[0]['steps']} | {losses} | {len(own)} | {' | '.join(map(interval, columns))} |")
        if row == "MLM" and len(own) > 1:
            limits = [f"{resolvable(column, 3):.3f}" for column in columns]
    print(f"Differences from MLM that three seeds resolve: {', '.join(limits)}")


if __name__ == "__main__":
    if "--table" in sys.argv:
        table()
    else:
        study(int(sys.argv[sys.argv.index("--jobs") + 1]) if "--jobs" in sys.argv else 2)
