"""The cost and gain per token of a chat model on 1, 2, 4 and 8 devices, read from the compiled programs.

`python -m benchmarks.tensor_parallel` compiles the decode program of a Llama from shapes alone, for simulated CPU
devices, and counts the collectives of a step, the bytes of their results on each device, and of the weights there.
Nothing runs, so there is no time here: simulated devices share one processor. The last line of output is JSON.
"""

import argparse
import json
import math
import os
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

from hfjax_app.runtime.process import prepare

prepare()  # before jax and torch start

import jax  # noqa: E402
import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from benchmarks.collectives import collectives  # noqa: E402
from benchmarks.hardware import describe  # noqa: E402
from benchmarks.shapes import LLAMA_3_2_1B  # noqa: E402
from hfjax_app.chat.model.model_runner import ModelRunner  # noqa: E402
from hfjax_app.chat.options import EngineOptions  # noqa: E402
from hfjax_app.runtime.mesh import mesh_of  # noqa: E402
from hfjax_app.runtime.programs import Programs  # noqa: E402
from hfjax_app.runtime.warm_up import compile_all  # noqa: E402

DEVICES = (1, 2, 4, 8)
# "tiny" is for trying the benchmark itself.
SHAPES = {
    "llama-3.2-1b": LLAMA_3_2_1B,
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 8,
        "vocab_size": 512,
        "tie_word_embeddings": True,
    },
}


def measure(config: LlamaConfig, devices: int, slots: int, context: int) -> dict[str, Any]:
    """The decode program of all slots on `devices` devices; layers are not a loop, so each collective is counted."""
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.float32).eval()
    mesh = mesh_of(jax.devices()[:devices]) if devices > 1 else None
    runner = ModelRunner(model, EngineOptions(slots=slots, context=context, end_tokens=(), buckets=()), mesh=mesh)
    programs = Programs(mesh=mesh)
    specs = runner.specs()
    compiled = dict(zip((spec.name for spec in specs), compile_all(programs, specs), strict=True))
    name = f"chat_decode_{slots}x{context}"
    report = next(report for report in programs.reports if report.name == name)
    counts, sizes = collectives(compiled[name].as_text())
    held = sum(math.prod(w.sharding.shard_shape(w.shape)) * w.dtype.itemsize for w in runner.weights.values())
    return {
        "collectives": dict(counts),
        "result_bytes_per_step": dict(sizes),
        "result_bytes_per_token": sum(sizes.values()) / slots,
        "weight_bytes_per_device": held,
        "argument_bytes_per_device": report.arguments,
        "temporary_bytes_per_device": report.temporary,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llama-3.2-1b", choices=SHAPES)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    arguments = parser.parse_args()
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(**SHAPES[arguments.shape], max_position_embeddings=4096, **special)
    report: dict[str, Any] = {"benchmark": "tensor_parallel", "hardware": describe(), **vars(arguments), "devices": {}}
    print(f"{arguments.shape}, float32, {arguments.slots} slots of {arguments.context} tokens, one decode step")
    for devices in DEVICES:
        found = measure(config, devices, arguments.slots, arguments.context)
        report["devices"][devices] = found
        results = f"{found['result_bytes_per_token'] / 1024:,.0f} KiB of results for a token"
        print(
            f"{devices} devices: {json.dumps(found['collectives'])}, {results}, "
            f"{found['weight_bytes_per_device'] / 2**20:,.0f} MiB of weights on each",
            flush=True,
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
