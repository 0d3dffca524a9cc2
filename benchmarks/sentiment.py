"""Texts per second, compared with transformers' text-classification pipeline on torch, eager and with torch.compile.

`python -m benchmarks.sentiment` classifies the same mixed texts (3 to 300 words, short ones more frequent) one, 32 and
256 at a time, and one text of 512 tokens. The pipeline runs with the batch size of the case and with its default, one
text at a time; the faster one counts. All contenders are warm, take turns in every round, and the median counts; a
ratio over 1 means that this app is faster. Processor time is reported as well, for busy machines. The last figure is
the seconds that "Why?" takes for each sentence of the held-out set.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hfjax_app.runtime.process import prepare

prepare()  # before jax and torch start

import torch  # noqa: E402
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline  # noqa: E402

from benchmarks.hardware import let_torch_compile  # noqa: E402
from hfjax_app.embedded import resolve  # noqa: E402
from hfjax_app.sentiment import SentimentClassifier  # noqa: E402

BATCHES = (1, 32, 256)
HELD_OUT = Path(__file__).parents[1] / "tests" / "sentiment" / "held_out.tsv"  # label, tab, sentence
_TEXT = """the a this that food service hotel train story cast ending music staff room waiter soup film book was is felt
looked great awful dull lovely cold slow friendly terrible wonderful fine not never always very quite and but we they it
again there today yesterday"""
WORDS = _TEXT.split()

Contender = Callable[[list[str]], Any]


def mixed_texts(count: int) -> list[str]:
    """Random words; the number of words is log-uniform from 3 to 300."""
    pick = random.Random(0)
    return [" ".join(pick.choices(WORDS, k=round(3 * 100 ** pick.random()))) for _ in range(count)]


def torch_contenders(source: str, batch: int, compiled: bool) -> list[Contender]:
    """The pipeline at this batch size and at 1."""
    model = AutoModelForSequenceClassification.from_pretrained(source).eval()
    if compiled:
        model.forward = torch.compile(model.forward, dynamic=True)
    pipe = pipeline("text-classification", model=model, tokenizer=AutoTokenizer.from_pretrained(source), top_k=None)
    return [
        lambda texts, size=size: pipe(texts, batch_size=size, truncation=True, max_length=512)
        for size in sorted({1, batch})
    ]


def seconds(contender: Contender, texts: list[str], batch: int) -> tuple[float, float]:
    """Wall-clock seconds and processor seconds."""
    started = time.perf_counter(), time.process_time()
    for at in range(0, len(texts), batch):
        contender(texts[at : at + batch])
    return time.perf_counter() - started[0], time.process_time() - started[1]


def measure(
    contenders: dict[str, list[Contender]], texts: list[str], batch: int, rounds: int
) -> dict[str, dict[str, float]]:
    """The fastest variant of each contender: the medians of rounds in which all take turns.

    Returns:
        texts_per_s by the clock, and cpu_ms: processor time per text, which is the better figure on a shared machine.
    """
    ways = {(name, at): way for name, list_of_ways in contenders.items() for at, way in enumerate(list_of_ways)}
    for way in ways.values():  # compile every shape before the measurement
        seconds(way, texts, batch)
    taken: dict[tuple[str, int], list[tuple[float, float]]] = {key: [] for key in ways}
    for _ in range(rounds):
        for key, way in ways.items():
            taken[key].append(seconds(way, texts, batch))
    found: dict[str, dict[str, float]] = {}
    for (name, _), times in taken.items():
        wall, cpu = (statistics.median(values) for values in zip(*times, strict=True))
        if name not in found or len(texts) / wall > found[name]["texts_per_s"]:
            found[name] = {"texts_per_s": len(texts) / wall, "cpu_ms": cpu / len(texts) * 1e3}
    return found


def seconds_to_explain(classifier: SentimentClassifier) -> dict[str, float]:
    """The likeliest label of every held-out sentence, explained: median and longest, each sentence once."""
    sentences = [line.split("\t")[1] for line in HELD_OUT.read_text().splitlines()]
    taken = []
    for sentence in sentences:
        started = time.perf_counter()
        classifier.explain(sentence)
        taken.append(time.perf_counter() - started)
    return {"sentences": len(taken), "median_s": statistics.median(taken), "longest_s": max(taken)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="sentiment", help="an embedded model's name, a folder or a hub id")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--texts", type=int, default=256, help="the most texts that each case classifies in a round")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    let_torch_compile()
    source = str(resolve(arguments.model))
    classifier = SentimentClassifier.from_pretrained(source)
    mixed = mixed_texts(max(arguments.texts, max(BATCHES)))
    cases = {f"batch {batch}": (mixed[: max(batch, min(arguments.texts, 64 * batch))], batch) for batch in BATCHES}
    cases["512 tokens"] = ([" ".join(WORDS[at % len(WORDS)] for at in range(600))] * 8, 1)
    report: dict[str, Any] = {
        "benchmark": "sentiment",
        "model": arguments.model,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "torch_threads": torch.get_num_threads(),
        "rounds": arguments.rounds,
        "cases": {},
    }
    print(f"{report['machine']}; model {arguments.model}; medians of {arguments.rounds} rounds")
    for name, (texts, batch) in cases.items():
        contenders = {"hfjax": [classifier.classify], "torch eager": torch_contenders(source, batch, compiled=False)}
        if not arguments.no_compile:
            contenders["torch.compile"] = torch_contenders(source, batch, compiled=True)
        with torch.inference_mode():
            found = measure(contenders, texts, batch, arguments.rounds)
        ours = found["hfjax"]
        for other, rates in found.items():
            rates["ratio"] = ours["texts_per_s"] / rates["texts_per_s"]
            rates["cpu_ratio"] = rates["cpu_ms"] / ours["cpu_ms"]
            print(
                f"{name:>10}  {other:14} {rates['texts_per_s']:8,.1f} texts/s {rates['cpu_ms']:8.2f} ms of processor "
                f"time   x{rates['ratio']:.2f}   x{rates['cpu_ratio']:.2f}",
                flush=True,
            )
        report["cases"][name] = found
    report["why"] = why = seconds_to_explain(classifier)
    print(f"       why  {why['median_s']:.3f} s in the median of {why['sentences']}, {why['longest_s']:.3f} s at most")
    classifier.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
