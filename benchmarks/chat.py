"""Tokens per second and time to the first token, compared with the alternatives, on the same random weights.

`python -m benchmarks.chat` measures a Llama of SmolLM2-135M's shape, greedy, prompts of 64 tokens: one, four and eight
users at once, then the first token of a 512-token prompt, then the gain and cost of drafts, then how the time grows
with the number of users and the length of a conversation. Contenders take turns in every round, and medians count. In
the comparison our engine does not draft, because random weights soon repeat themselves. It loads a checkpoint in
bfloat16: by default it keeps most weights in bfloat16 and computes in float32; it can also hold them in float32 or
int8. A contender's share of the floor is the bytes of its weights that it reads per second, divided by the memory
bandwidth of a plain sum. Writes benchmarks/results/chat-SHAPE.json and .png; the last line of output is the same JSON.
llama.cpp takes part after `make bench-peers`.
"""

import argparse
import copy
import gc
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hfjax_app.runtime.process import prepare

prepare()  # before jax and torch start

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from benchmarks import chart  # noqa: E402
from benchmarks.contenders import SHAPES, Contender, Engine, LlamaCpp, PlainPort, Run, Transformers, random_model  # noqa: E402
from benchmarks.hardware import MemoryFloor, describe, let_torch_compile  # noqa: E402
from hfjax_app.chat import ChatEngine  # noqa: E402
from hfjax_app.chat.options import SPECULATION  # noqa: E402
from hfjax_app.chat.plan import weight_use  # noqa: E402
from hfjax_app.embedded import resolve  # noqa: E402

RESULTS = Path(__file__).parent / "results"
CONTEXT = 768  # enough for a prompt of 512 tokens and an answer
PROMPT, LONG_PROMPT = 64, 512
SETTLE_S = 0.5  # before each run: the threads of the previous contender spin for a while
FLOAT32 = "hfjax float32"
OURS = {"hfjax bfloat16 weights": {}, FLOAT32: {"dtype": "float32"}, "hfjax int8": {"quantize": "int8"}}


def prompts_of(users: int, length: int, seed: int) -> list[list[int]]:
    """Random ids, with a new seed every round, so that no contender answers from a cache of earlier prompts."""
    return np.random.default_rng(seed).integers(0, 512, (users, length)).tolist()


def engine_of(model: torch.nn.Module, name: str, *, speculation: str = "never", **options: Any) -> Engine:
    """The engine as a user gets it, from a checkpoint in bfloat16."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
        AutoTokenizer.from_pretrained(resolve("chat-llama")).save_pretrained(folder)
        engine = ChatEngine.from_pretrained(folder, speculation=speculation, **options)
    contender = Engine(name, engine, weight_use(engine.runner.decoder, model, engine.runner.weights).read())
    print(f"{name}: ready after {time.perf_counter() - started:.0f} s", flush=True)
    return contender


def contenders_of(arguments: argparse.Namespace, crowds: tuple[int, ...]) -> list[Contender]:
    """The contenders. The plain port is the first one, made before our engine changes torchax."""
    shape, threads, users = arguments.shape, torch.get_num_threads(), max(crowds)
    full = random_model(shape, torch.float32, 8192)
    half = random_model(shape, torch.float32, 8192).to(torch.bfloat16)
    made: list[Contender] = [PlainPort("plain torchax float32", full, CONTEXT)]
    made.append(Transformers("transformers float32", full))
    if not arguments.quick:
        made.append(Transformers("transformers bfloat16", half))
        if not arguments.no_compile:
            let_torch_compile()
            made.append(Transformers("torch.compile float32", random_model(shape, torch.float32, 8192), compiled=True))
            made.append(Transformers("torch.compile bfloat16", half, compiled=True))
    if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf"):
        from benchmarks import gguf_file

        for precision in ("F32",) if arguments.quick else ("F32", "BF16", "Q8_0"):
            path = gguf_file.write(full, Path(tempfile.gettempdir()) / f"bench-{shape}-{precision}.gguf", precision)
            made.append(LlamaCpp(f"llama.cpp {precision}", path, users=users, context=CONTEXT, threads=threads))
    else:
        print("llama.cpp is not installed (make bench-peers), so it does not take part")
    kinds = OURS if not arguments.quick else {FLOAT32: OURS[FLOAT32]}
    size = {"slots": users, "context": CONTEXT, "buckets": crowds}
    return made + [engine_of(full, name, **size, **options) for name, options in kinds.items()]


def measure(
    contenders: list[Contender],
    users: int,
    length: int,
    new_tokens: int,
    rounds: int,
    read: Callable[[int, Run], float],
) -> dict[str, float]:
    """The median of `read(users, run)` of each contender over rounds after a warm-up; contenders take turns."""
    tokens: dict[str, list[list[int]]] = {}
    taken: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for round_ in range(rounds + 1):
        for contender in contenders:
            prompts = prompts_of(users, length, seed=1000 * round_ + users)
            time.sleep(SETTLE_S)
            run = contender.run(prompts, new_tokens)
            if round_:
                taken[contender.name].append(read(users, run))
            else:
                tokens[contender.name] = run.tokens
    for name, made in tokens.items():  # rounding can change an answer at some token, a wrong model at the first ones
        same = np.mean(np.array(made) == np.array(tokens["transformers float32"]))
        if same < 1:
            print(f"note: {same:.0%} of {name}'s tokens are those of transformers in float32")
    return {name: statistics.median(values) for name, values in taken.items()}


def growth(model: torch.nn.Module, arguments: argparse.Namespace) -> dict[str, Any]:
    """Our engine only: more users; a longer conversation; a follow-up compared with a new conversation."""
    result: dict[str, Any] = {"users": {}, "conversation": {}}
    many = engine_of(model, "32 slots", slots=32, context=256)
    result["bytes_per_slot_and_token"] = cache_bytes(many) // (32 * 256)
    for users in (1, 2, 4, 8, 16, 32):
        many.run(prompts_of(users, PROMPT, seed=users), 4)
        runs = [many.run(prompts_of(users, PROMPT, seed=seed + users), 64) for seed in (100, 200, 300)]
        result["users"][users] = users * 64 / statistics.median(run.seconds for run in runs)
        print(f"{users} users: {result['users'][users]:,.1f} tokens/s", flush=True)
    many.engine.stop()
    del many
    gc.collect()
    long = engine_of(model, "8,448 tokens of context", slots=1, context=8448)
    [conversation] = prompts_of(1, 8192 + 64, seed=7)
    long.run([conversation[:PROMPT]], 4)
    for length in (256, 1024, 2000, 4096, 8192):
        long.run([conversation[:length]], 1)
        alone = statistics.median(long.run(prompts_of(1, PROMPT, seed=seed), 1).first_s for seed in (11, 12, 13))
        long.run([conversation[:length]], 1)
        run = long.run([conversation[: length + PROMPT]], 33)
        result["conversation"][length] = {
            "tokens_per_s": 32 / (run.seconds - run.first_s),
            "first_token_of_a_follow_up_s": run.first_s,
            "first_token_of_its_tokens_alone_s": alone,
        }
        print(f"{length} tokens of conversation: {json.dumps(result['conversation'][length])}", flush=True)
    long.engine.stop()
    return result


def drafts(model: torch.nn.Module, new_tokens: int, rounds: int) -> dict[str, Any]:
    """One user with drafts from the conversation, without drafts, and with the engine's own choice.

    Measured on a text that repeats itself (a greedy answer of random weights soon does) and on one that does not
    (sampled tokens).
    """
    options = {"slots": 1, "context": CONTEXT}
    engines = {mode: engine_of(model, mode, speculation=mode, **options) for mode in SPECULATION}
    result: dict[str, Any] = {}
    texts = {"repeats itself": {}, "does not": {"temperature": 1.5, "seed": 1}}
    for text, sampling in texts.items():
        rates: dict[str, list[float]] = {mode: [] for mode in engines}
        counts: dict[str, list[int]] = {mode: [0, 0] for mode in engines}
        for round_ in range(rounds + 1):
            [piece] = prompts_of(1, PROMPT // 4, seed=50 + round_)
            [other] = prompts_of(1, PROMPT, seed=50 + round_)
            answers = set()
            for mode, contender in engines.items():
                run = contender.run([other if sampling else piece * 4], new_tokens, **sampling)
                answers.add(tuple(run.tokens[0]))
                if round_:
                    rates[mode].append((new_tokens - 1) / (run.seconds - run.first_s))
                    counts[mode][0] += contender.drafted
                    counts[mode][1] += contender.accepted
            if len(answers) > 1:
                print("note: two answers differ by rounding")
        result[text] = {
            mode: {
                "tokens_per_s": statistics.median(rates[mode]),
                "accepted_share": counts[mode][1] / counts[mode][0] if counts[mode][0] else None,
                "drafted_tokens": counts[mode][0],
            }
            for mode in engines
        }
        print(f"drafts, a text that {text}: {json.dumps(result[text])}", flush=True)
    for contender in engines.values():
        contender.engine.stop()
    return result


def cache_bytes(contender: Engine) -> int:
    import jax

    return sum(leaf.nbytes for leaf in jax.tree.leaves(contender.engine.runner._cache))


def ratios(rates: dict[str, float], better_when_higher: bool) -> dict[str, dict[str, float]]:
    """For each kind of weights, the ratio of this engine's result to that of each contender; over 1 is better."""
    others = {name: rate for name, rate in rates.items() if name not in OURS}
    return {
        kind: {name: rates[kind] / rate if better_when_higher else rate / rates[kind] for name, rate in others.items()}
        for kind in OURS
        if kind in rates
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    parser.add_argument(
        "--quick", action="store_true", help="float32 only, fewer tokens and rounds, one and four users"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it compiles for minutes")
    parser.add_argument("--no-growth", action="store_true", help="leave out how cost grows")
    parser.add_argument("--rounds", type=int, default=None, help="default: 5, quick: 3")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    crowds = (1, 4) if arguments.quick else (1, 4, 8)
    new_tokens = 32 if arguments.quick else 128

    floor = MemoryFloor()
    report: dict[str, Any] = {"benchmark": "chat", "shape": arguments.shape, "hardware": describe(), "rounds": rounds}
    contenders = contenders_of(arguments, crowds)
    report["weight_bytes"] = {contender.name: contender.weight_bytes for contender in contenders}
    bandwidths = [floor.bytes_per_s() for _ in range(5)]

    report["tokens_per_s"], report["times_as_fast"] = {}, {}
    for users in crowds:
        rates = measure(contenders, users, PROMPT, new_tokens, rounds, lambda n, run: n * new_tokens / run.seconds)
        bandwidths += [floor.bytes_per_s() for _ in range(5)]
        report["tokens_per_s"][users], report["times_as_fast"][users] = rates, ratios(rates, True)
        print(
            f"{users} users, tokens/s: " + ", ".join(f"{name} {rate:,.1f}" for name, rate in rates.items()), flush=True
        )
    firsts = measure(contenders, 1, LONG_PROMPT, 1, rounds, lambda _, run: run.first_s)
    report["first_token_of_512_s"], report["first_token_times_as_fast"] = firsts, ratios(firsts, False)
    print("first token of 512, s: " + ", ".join(f"{name} {value:.3f}" for name, value in firsts.items()), flush=True)

    report["memory_bytes_per_s"] = statistics.median(bandwidths)
    report["share_of_floor"] = {
        name: rate * report["weight_bytes"][name] / report["memory_bytes_per_s"]
        for name, rate in report["tokens_per_s"][1].items()
    }
    print(
        f"memory reads {report['memory_bytes_per_s'] / 1e9:.1f} GB/s; shares of that with one user: "
        + ", ".join(f"{name} {share:.0%}" for name, share in report["share_of_floor"].items())
    )
    report["drafts"] = drafts(random_model(arguments.shape, torch.float32, 8192), new_tokens, rounds)
    if not arguments.quick and not arguments.no_growth:
        report["growth"] = growth(random_model(arguments.shape, torch.float32, 8448), arguments)
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"chat-{arguments.shape}{'-quick' if arguments.quick else ''}"
    stem.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
    chart.draw(report, stem.with_suffix(".png"))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
