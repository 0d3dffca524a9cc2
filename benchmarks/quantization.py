"""The cost of int8 weights for the embedded chat models: perplexity and right answers compared with float32, and bytes.

`python -m benchmarks.quantization` measures the perplexity of the assistant's messages in conversations that the
training's generator makes from a seed that training did not use, and the share of held-out conversations with right
greedy answers. The last line of output is JSON.
"""

import argparse
import json
import math
from itertools import islice
from typing import Any

from hfjax_app.runtime.process import prepare

prepare()  # before jax and torch start

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.hardware import describe  # noqa: E402
from hfjax_app.chat import ChatEngine, SamplingParams  # noqa: E402
from hfjax_app.chat.model.kv_cache import allocate  # noqa: E402
from hfjax_app.chat.text.chat_template import ChatFormat  # noqa: E402
from hfjax_app.embedded import resolve  # noqa: E402
from hfjax_app.runtime.programs import Programs  # noqa: E402
from training.chat.architectures import ARCHITECTURES  # noqa: E402
from training.chat.batches import IGNORED, encode  # noqa: E402
from training.chat.conversations import conversations  # noqa: E402
from training.chat.evaluate import HELD_OUT, shares, transcripts  # noqa: E402

SEED, TOKENS, MAX_TOKENS = 20_000_003, 384, 120
Rows = list[tuple[list[int], list[int]]]


def perplexity(engine: ChatEngine, rows: Rows) -> tuple[float, int]:
    """exp of the mean negative log-likelihood of all labelled tokens, and their number.

    Args:
        engine: started or not.
        rows: ids and labels of each conversation, at most TOKENS.
    """
    decoder = engine.runner.decoder.resized(context=TOKENS, chunk=TOKENS)

    def losses(weights: Any, ids: jax.Array, valid: jax.Array, labels: jax.Array) -> jax.Array:
        logits, _ = decoder.forward(
            weights, ids, allocate(decoder.slot_shape), jnp.int32(0), valid, keep=jnp.arange(TOKENS)
        )
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits[:-1]), jnp.maximum(labels[1:], 0)[:, None], axis=1)
        return -jnp.sum(jnp.where(labels[1:] == IGNORED, 0, chosen[:, 0]))

    zeros = np.zeros(TOKENS, np.int32)
    program = Programs().compile("losses", losses, engine.runner.weights, zeros, np.int32(1), zeros)
    total, count = 0.0, 0
    for ids, labels in rows:
        padded, wanted = zeros.copy(), np.full(TOKENS, IGNORED, np.int32)
        padded[: len(ids)], wanted[: len(ids)] = ids, labels
        total += float(program(engine.runner.weights, padded, np.int32(len(ids)), wanted))
        count += int((wanted[1:] != IGNORED).sum())
    return math.exp(total / count), count


def right(engine: ChatEngine) -> float:
    """The share of held-out conversations in which every checked answer is right; starts the engine and stops it."""
    chat, params = ChatFormat(engine.tokenizer), SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    engine.start()

    def reply_many(talks: list[list[dict[str, str]]]) -> list[str]:
        answers = engine.generate([chat.encode(messages) for messages in talks], params)
        return [engine.tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]

    found = shares(transcripts(reply_many, HELD_OUT))["all"]
    engine.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--no-answers", action="store_true", help="leave the held-out conversations out")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "quantization", "hardware": describe(), "models": {}}
    for architecture in ARCHITECTURES:
        found: dict[str, dict[str, float]] = {}
        for quantize in ("none", "int8"):
            engine = ChatEngine.from_pretrained(
                resolve(architecture.name), slots=8, context=512, buckets=[], quantize=quantize, dtype="float32"
            )
            talks = [talk.messages for talk in islice(conversations(SEED), arguments.conversations)]
            rows = encode(engine.tokenizer, architecture.chat_format, talks)
            value, tokens = perplexity(engine, [row for row in rows if len(row[0]) <= TOKENS])
            of_weights = sum(weight.nbytes for weight in engine.runner.weights.values())
            name = {"none": "float32"}.get(quantize, quantize)
            found[name] = {"perplexity": value, "tokens": tokens, "weight_bytes": of_weights}
            if not arguments.no_answers:
                found[name]["right"] = right(engine)
            print(f"{architecture.name:11} {name:8} {json.dumps(found[name])}", flush=True)
        change = found["int8"]["perplexity"] / found["float32"]["perplexity"] - 1
        print(f"{architecture.name:11} perplexity changes by {change:+.3%}", flush=True)
        report["models"][architecture.name] = found | {"perplexity_change": change}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
