"""What a decoding step would save if each slot's cache were read as far as it is filled: arithmetic on bytes.

    python -m benchmarks.cache_bytes --chat-model FOLDER --topology v5e:1x1 --slots 8 --context 32768

The app reads the positions of the smallest bucket that covers the longest slot; a ragged kernel reads what is there.
Both read all weights. One JSON line for each filling of the slots. Compiles nothing, needs no TPU.
"""

import argparse
import json

from hfjax_app.chat.model.buckets import Buckets
from hfjax_app.chat.plan import ChatPlanner
from hfjax_app.runtime.topology import parse

STEPS = 16  # of a call: a bucket's positions are copied out and back once in each
SHORT = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat-model", required=True, help="a folder with a config.json")
    parser.add_argument("--topology", default="v5e:1x1")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--quantize", default="none")
    options = parser.parse_args()
    where, slots, context = parse(options.topology), options.slots, options.context
    assert where.chip is not None, "a CPU's bandwidth is not known"
    bandwidth = where.chip.bandwidth / where.chip.devices
    size = {"slots": slots, "context": context}
    planner = ChatPlanner(options.chat_model, dtype="bfloat16", quantize=options.quantize, **size)
    weights, cache = planner.use(where.devices).read(slots), planner.estimate(where.devices).slot
    buckets: Buckets = cache.buckets(slots, context)

    def step(bucket: tuple[int, int]) -> float:
        copies = 1.0 if bucket == (slots, context) else 1 + 2 / STEPS
        return weights + cache.filled(*bucket, context) * copies

    fillings = {
        "all full": [context] * slots,
        "all half full": [context // 2] * slots,
        "evenly spread": [context * (i + 1) // slots for i in range(slots)],
        "one full, others short": [context] + [SHORT] * (slots - 1),
        "all short": [SHORT] * slots,
        "one slot alone, full": [context],
        "one slot alone, short": [SHORT],
    }
    for name, lengths in fillings.items():
        covering = [bucket for bucket in buckets.decode if bucket[0] >= len(lengths) and bucket[1] >= max(lengths)]
        bucket = min(covering, key=lambda each: each[0] * each[1])
        ragged = weights + sum(cache.filled(1, length, context) for length in lengths)
        row = {
            "slots": name,
            "bucket": "x".join(map(str, bucket)),
            "ms": round(step(bucket) / bandwidth * 1e3, 2),
            "ragged_ms": round(ragged / bandwidth * 1e3, 2),
            "ratio": round(step(bucket) / ragged, 2),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
