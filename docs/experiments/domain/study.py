"""Continued pre-training on Wikipedia after English books: with and without replay of books, with and without new tokens.

    python docs/experiments/domain/study.py [--jobs N]     in a folder with corpus/books and corpus/wikipedia.xml.bz2
    python docs/experiments/domain/study.py --table        prints the table of results.csv
    python docs/experiments/domain/study.py --plot         draws losses.svg from results.csv

`lambert` must be on the path. The same command again runs only what is missing. results.csv has each evaluation.
"""

import concurrent.futures
import csv
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SEEDS = [1, 2]
SIZE, EXTENDED = 2048, 3072
# Share of samples from books.
REPLAY = {"none": 0.0, "25 %": 0.25}
VOCABULARIES = {"books": "books.txt", "extended": "extended.txt"}
COLUMNS = ["vocabulary", "replay", "seed", "step", "wikipedia", "books"]


def lambert(*words):
    subprocess.run(["lambert", "--quiet", *words], check=True, stdout=subprocess.DEVNULL)


def prepare():
    """Vocabularies and datasets."""
    wikipedia = "corpus/wikipedia.xml.bz2"
    if not pathlib.Path("books.txt").exists():
        lambert("vocab", "--input", "corpus/books", "--size", str(SIZE), "--output", "books.txt")
    if not pathlib.Path("extended.txt").exists():
        extend = ["--extend", "books.txt", "--size", str(EXTENDED)]
        lambert("vocab", *extend, "--input", wikipedia, "--output", "extended.txt")
    for name, file in VOCABULARIES.items():
        folder = "data" if name == "books" else "data-extended"
        for source, path in [("books", "corpus/books"), ("wikipedia", wikipedia)]:
            if not pathlib.Path(folder, source).exists():
                sets = [f"source.0.path={path}", f"vocabulary.file={file}", f"output.url={folder}/{source}"]
                words = [word for value in sets for word in ("--set", value)]
                lambert("prep", "--config", str(HERE / "prep.toml"), *words)


def general(seed):
    """Trains on books. Returns the checkpoint."""
    run = f"runs/general-{seed}"
    lambert("run", "--config", str(HERE / "general.toml"), "--run", run, "--set", f"run.seed={seed}")
    listed = subprocess.run(["lambert", "checkpoint", "list", run, "--json"], check=True, capture_output=True, text=True)
    return f"{run}/checkpoints/{json.loads(listed.stdout.splitlines()[0])['name']}"


def continued(base, vocabulary, replay, seed):
    """Trains on Wikipedia from the checkpoint `base`."""
    share = REPLAY[replay]
    run = f"runs/{vocabulary}-{share:.0%}-{seed}".replace("%", "")
    folder = "data" if vocabulary == "books" else "data-extended"
    parts = [f'{{name="wikipedia",data="{folder}/wikipedia/train",weight={1 - share}}}']
    if share > 0:
        parts.append(f'{{name="books",data="{folder}/books/train",weight={share}}}')
    sets = [f"run.seed={seed}", f"stage.0.mixture=[{','.join(parts)}]", f"evaluation.data={folder}/wikipedia/held-out",
            f'evaluation.extra=[{{name="books",data="{folder}/books/held-out"}}]']
    words = [word for value in sets for word in ("--set", value)]
    lambert("run", "--config", str(HERE / "continued.toml"), "--run", run, "--from", base, *words)
    lines = subprocess.run(["lambert", "metrics", run], check=True, capture_output=True, text=True).stdout
    records = [json.loads(line) for line in lines.splitlines()]
    rows = [record for record in records if record.get("event") == "evaluation" and not record["undone"]]
    return [{"vocabulary": vocabulary, "replay": replay, "seed": seed, "step": row["step"],
             "wikipedia": row["mlm_loss"], "books": row["extra"]["books"]["mlm_loss"]} for row in rows]


def study(jobs):
    prepare()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        bases = dict(zip(SEEDS, pool.map(general, SEEDS)))
        cells = [(vocabulary, replay, seed) for vocabulary in VOCABULARIES for replay in REPLAY for seed in SEEDS]
        rows = [row for rows in pool.map(lambda cell: continued(bases[cell[2]], *cell), cells) for row in rows]
    with open("results.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read():
    with open(HERE / "results.csv") as file:
        return [{**row, **{key: float(row[key]) for key in ("step", "wikipedia", "books")}} for row in csv.DictReader(file)]


def groups(rows):
    """Rows by vocabulary and replay."""
    found = {}
    for row in rows:
        found.setdefault((row["vocabulary"], row["replay"]), []).append(row)
    return found


def table():
    print("| vocabulary | replay | Wikipedia, start | Wikipedia, end | change | books, start | books, end | change |")
    print("|---|---|---|---|---|---|---|---|")
    for (vocabulary, replay), rows in groups(read()).items():
        last = max(row["step"] for row in rows)
        cells = []
        for data in ("wikipedia", "books"):
            ends = {step: [row[data] for row in rows if row["step"] == step] for step in (0, last)}
            changes = [end - start for start, end in zip(ends[0], ends[last])]
            both = " and ".join(f"{change:+.3f}" for change in changes)
            cells += [f"{statistics.mean(ends[0]):.3f}", f"{statistics.mean(ends[last]):.3f}", both]
        print(f"| {vocabulary} | {replay} | {' | '.join(cells)} |")


def plot():
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "lambert"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    styles = {"books": "-", "extended": "--"}
    colours = {"none": "#c2410c", "25 %": "#1f5fb4"}
    for axis, data in zip(axes, ("wikipedia", "books")):
        for (vocabulary, replay), rows in groups(read()).items():
            steps = sorted({row["step"] for row in rows})
            means = [statistics.mean(row[data] for row in rows if row["step"] == step) for step in steps]
            axis.plot(steps, means, styles[vocabulary], color=colours[replay], label=f"{vocabulary}, replay {replay}")
            axis.plot([row["step"] for row in rows], [row[data] for row in rows], ".", color=colours[replay], markersize=3)
        axis.set(title=f"held-out loss on {data.capitalize()}", xlabel="step", ylabel="nats")
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig("losses.svg", metadata={"Date": None})


if __name__ == "__main__":
    if "--table" in sys.argv:
        table()
    elif "--plot" in sys.argv:
        plot()
    else:
        study(int(sys.argv[sys.argv.index("--jobs") + 1]) if "--jobs" in sys.argv else 2)
