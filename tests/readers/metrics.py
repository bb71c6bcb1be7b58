"""Reads exported step records with the programs of their users.

    python3 metrics.py tables CSV PARQUET           pandas and pyarrow; prints the columns of both as JSON
    python3 metrics.py accumulator FOLDER           TensorBoard's EventAccumulator; prints {tag: [[step, value], ...]}
    python3 metrics.py server FOLDER true|false     TensorBoard with --load_fast, over HTTP; prints {tag: [[step, value], ...]}
    python3 metrics.py texts FOLDER                 text summaries and hyperparameters
"""

import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request


def plain(value):
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.item() if hasattr(value, "item") else value


def tables(csv, parquet):
    import pandas
    import pyarrow.parquet

    frame = pandas.read_csv(csv, float_precision="round_trip")
    table = pyarrow.parquet.read_table(parquet)
    return {
        "csv": {name: [plain(value) for value in frame[name]] for name in frame.columns},
        "parquet": {name: [plain(value) for value in table[name].to_pylist()] for name in table.column_names},
        "types": {field.name: str(field.type) for field in table.schema},
    }


def accumulator(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def server(folder, load_fast):
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", "0", "--load_fast", load_fast]
    command += ["--reload_interval", "1", "--samples_per_plugin", "scalars=100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed = []
        for line in process.stdout:
            printed.append(line)
            found = re.search(r"http://[^/]+", line)
            if found:
                break
        else:
            sys.exit("TensorBoard has not started: " + "".join(printed))
        base = found.group().replace(os.uname().nodename, "localhost")

        def get(path):
            with urllib.request.urlopen(base + "/data/" + path, timeout=30) as reply:
                return json.load(reply)

        deadline = time.monotonic() + 60
        tags = {}
        while not tags and time.monotonic() < deadline:
            time.sleep(0.5)
            tags = get("plugin/scalars/tags")
        # The fast loader serves data before it has read the whole file. So repeat until the data no longer change.
        scalars, before = {}, None
        while scalars != before or not scalars:
            before = scalars
            time.sleep(1.5)
            scalars = {}
            for run, names in get("plugin/scalars/tags").items():
                for tag in names:
                    query = urllib.parse.urlencode({"run": run, "tag": tag})
                    scalars[tag] = [[step, value] for _, step, value in get("plugin/scalars/scalars?" + query)]
        return scalars
    finally:
        process.terminate()
        process.wait()


def texts(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2
    from tensorboard.util import tensor_util

    events = EventAccumulator(folder)
    events.Reload()
    found = {}
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            values = tensor_util.make_ndarray(event.tensor_proto)
            found[tag] = [value.decode() if isinstance(value, bytes) else str(value) for value in values.reshape(-1)]
    content = events.PluginTagToContent("hparams").get("_hparams_/session_start_info", b"")
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    kinds = {name: value.WhichOneof("kind") for name, value in hparams.items()}
    found["hparams"] = {name: getattr(value, kinds[name]) for name, value in hparams.items()}
    return found


COMMANDS = {"tables": tables, "accumulator": accumulator, "server": server, "texts": texts}
print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
