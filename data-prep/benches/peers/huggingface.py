"""Processes one corpus with Hugging Face datasets + tokenizers and with `lambert prep`, in turn.

    pip install datasets transformers tokenizers
    python data-prep/benches/peers/huggingface.py --lambert target/release/lambert --vocabulary vocab.txt --rounds 3 FILE...

The Hugging Face program does what its examples do. It reads lines of text, encodes them with a fast BERT tokenizer,
cuts the ids into runs of 128, and writes Parquet. It forms no sentence pairs and does not shuffle the corpus. `lambert prep`
also splits sentences, forms next-sentence pairs, and shuffles globally. Prints MB of text per second.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"


def theirs(files, vocabulary, folder, processes):
    import datasets
    from transformers import BertTokenizerFast

    datasets.disable_progress_bars()
    tokenizer = BertTokenizerFast(vocab=vocabulary, do_lower_case=True)
    lines = datasets.load_dataset("text", data_files=files, split="train", cache_dir=folder)

    def encode(batch):
        return {"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]}

    def group(batch):
        ids = [id for ids in batch["input_ids"] for id in ids]
        return {"input_ids": [ids[start : start + 128] for start in range(0, len(ids) - 127, 128)]}

    count = None if processes == 1 else processes
    encoded = lines.map(encode, batched=True, num_proc=count, remove_columns=["text"])
    grouped = encoded.map(group, batched=True, num_proc=count)
    grouped.to_parquet(os.path.join(folder, "out.parquet"))


def ours(files, vocabulary, folder, program, threads):
    config = os.path.join(folder, "prep.toml")
    with open(config, "w") as output:
        for file in files:
            output.write(f'[[source]]\npath = "{file}"\n')
        output.write(f'[vocabulary]\nfile = "{vocabulary}"\n[output]\nurl = "{folder}/data"\n')
    command = [program, "prep", "--config", config, "--threads", str(threads)]
    subprocess.run(command, check=True, capture_output=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lambert", required=True)
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    megabytes = sum(os.path.getsize(file) for file in arguments.files) / 1e6
    names = ["lambert, 1 thread", "datasets, 1 process", "lambert, 2 threads", "datasets, 2 processes"]
    rates = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name in names:
            folder = tempfile.mkdtemp()
            count = int(name.split()[1])
            start = time.perf_counter()
            if name.startswith("lambert"):
                ours(arguments.files, arguments.vocabulary, folder, arguments.lambert, count)
            else:
                theirs(arguments.files, arguments.vocabulary, folder, count)
            rates[name].append(megabytes / (time.perf_counter() - start))
            shutil.rmtree(folder)
    for name in names:
        print(f"{name:<24}{statistics.median(rates[name]):8.1f} MB/s of {[round(rate, 1) for rate in rates[name]]}")
    for count in ["1", "2"]:
        ratios = [a / b for (x, y) in [(f"lambert, {count}", f"datasets, {count}")]
                  for a, b in zip(*(next(v for k, v in rates.items() if k.startswith(p)) for p in (x, y)))]
        print(f"ratio at {count}: {statistics.median(ratios):.1f}")


if __name__ == "__main__":
    main()
