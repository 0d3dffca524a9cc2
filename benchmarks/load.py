"""Seconds and peak memory to load a checkpoint: this loader compared with from_pretrained and torchax's .to("jax").

`python -m benchmarks.load` writes a checkpoint of Llama-3.2-1B's shape (random bfloat16 weights, several safetensors
files, which stay in the page cache). The contenders load it in turns, each time in a new process that has loaded a tiny
checkpoint before: to bfloat16; to float32; and for float32 arithmetic as in the app on a CPU, with linear layers and
embedding in bfloat16, compared with all weights in float32. A load ends when every page of every array has been read.
Memory is the process's anonymous memory (RssAnon, sampled from outside): pages of mapped files belong to the page
cache. On a CPU it includes the loaded arrays, so the peak without them is reported as well. The last line of output is
JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from benchmarks.hardware import GIB, describe
from benchmarks.shapes import LLAMA_3_2_1B

OURS, THEIRS = "hfjax_app", "from_pretrained"
# The dtype that a model computes in, and whether our loader leaves weights in bfloat16.
KINDS = {"bfloat16": ("bfloat16", False), "float32": ("float32", False), "kept": ("float32", True)}
# "tiny" is for trying the benchmark itself.
SHAPES = {
    "llama-3.2-1b": LLAMA_3_2_1B,
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 4096},
}
FILES = 5
SAMPLE_S = 0.002
PAGE = 4096


def write_checkpoint(folder: Path, shape: str) -> int:
    """Random weights in about FILES files; returns their bytes."""
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(LlamaConfig(**SHAPES[shape]), dtype=torch.bfloat16)
    size = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(folder, max_shard_size=size // FILES)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def load(contender: str, folder: str, kind: str) -> list[Any]:
    """The weights as JAX arrays, completely loaded."""
    import jax
    import numpy as np

    name, kept = KINDS[kind]
    dtype = getattr(torch, name)
    if contender == OURS:
        from hfjax_app.runtime.checkpoints.empty_model import empty_model
        from hfjax_app.runtime.checkpoints.safetensors_reader import read
        from hfjax_app.runtime.transforms import chat_transforms

        model = empty_model(AutoModelForCausalLM, folder, dtype)
        arrays = list(read(model, folder, transforms=chat_transforms(model, keep_bf16=kept)).values())
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to("jax")
        arrays = [tensor.jax() for tensor in (*model.parameters(), *model.buffers())]
    jax.block_until_ready(arrays)
    if jax.default_backend() == "cpu":  # an array may be a view of a file whose pages are not read yet
        for array in arrays:
            np.asarray(array).reshape(-1).view(np.uint8)[::PAGE].max()
    return arrays


def child(contender: str, folder: str, kind: str) -> None:
    """Loads the tiny checkpoint, then the other one after a line on stdin, and holds its arrays until the next line."""
    if contender == OURS:
        from hfjax_app.runtime.process import prepare

        prepare()
    else:
        import torchax

        torchax.enable_globally()
    load(contender, str(Path(folder, "tiny")), kind)
    print("ready", flush=True)
    input()
    started = time.perf_counter(), time.process_time()
    arrays = load(contender, str(Path(folder, "measured")), kind)
    seconds, processor_seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    dtype = str(max(arrays, key=lambda array: array.nbytes).dtype)
    found = {"seconds": seconds, "processor_seconds": processor_seconds, "dtype": dtype}
    print(json.dumps(found | {"arrays": sum(array.nbytes for array in arrays)}), flush=True)
    input()


class Peak:
    """The peak of a process's anonymous memory while the block runs, in bytes above its start."""

    def __init__(self, process: int):
        self._status = Path(f"/proc/{process}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def anonymous(self) -> int:
        line = next(line for line in self._status.read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._most = max(self._most, self.anonymous())

    def __enter__(self) -> "Peak":
        self._began = self._most = self.anonymous()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.bytes = max(self._most, self.anonymous()) - self._began


def measure(contender: str, folder: Path, kind: str) -> dict[str, float]:
    """Loads in a new process: seconds, bytes of the arrays, the peak, and the peak without the arrays."""
    command = [sys.executable, "-m", "benchmarks.load", "--child", contender, str(folder), kind]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.PIPE, text=True) as process:

        def line() -> str:
            read = process.stdout.readline()
            if not read:
                sys.exit(process.stderr.read())
            return read

        line()
        with Peak(process.pid) as peak:
            process.stdin.write("load\n")
            process.stdin.flush()
            found = json.loads(line())
        process.communicate("end\n")
    dtype, kept = KINDS[kind]
    assert found.pop("dtype") == ("bfloat16" if kept and contender == OURS else dtype)
    return found | {"peak": peak.bytes, "peak_less_arrays": max(0, peak.bytes - found["arrays"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llama-3.2-1b", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measured rounds (default: 5)")
    parser.add_argument("--folder", type=Path, help="where the checkpoint is written for the time (default: temporary)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    report: dict[str, Any] = {"benchmark": "load", "hardware": describe(), "shape": arguments.shape}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        write_checkpoint(Path(folder, "tiny"), "tiny")
        size = write_checkpoint(Path(folder, "measured"), arguments.shape)
        print(f"{arguments.shape}, {size / GIB:.2f} GiB in bfloat16; medians of {arguments.rounds} rounds")
        for kind in KINDS:
            seen: dict[str, list[dict[str, float]]] = {OURS: [], THEIRS: []}
            for _ in range(arguments.rounds):
                for contender, results in seen.items():
                    results.append(measure(contender, Path(folder), kind))
            medians = {
                contender: {key: statistics.median(result[key] for result in results) for key in results[0]}
                for contender, results in seen.items()
            }
            report[kind] = medians | {"ratios": {}}
            for contender, found in medians.items():
                times = f"{found['seconds']:6.2f} s, {found['processor_seconds']:6.2f} s of processors"
                peaks = f"peak {found['peak'] / GIB:5.2f} GiB, {found['peak_less_arrays'] / GIB:5.2f} beyond the arrays"
                print(f"{kind}, {contender:16} {times}, {peaks}")
            for key in ("seconds", "processor_seconds", "peak", "peak_less_arrays"):
                report[kind]["ratios"][key] = round(medians[OURS][key] / (medians[THEIRS][key] or 1), 3)
            print(f"{kind}, ours to theirs: {json.dumps(report[kind]['ratios'])}", flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
