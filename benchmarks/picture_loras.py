"""The time of a change of LoRA at the size of Stable Diffusion XL: random weights in the shapes of its UNet.

`python -m benchmarks.picture_loras [--dtype float32]` merges a LoRA of rank 16 over all attention layers, each time
with another weight, and again one that is remembered. A loop of additions in Python says how fast the machine was. The
last line of output is JSON.
"""

import argparse
import json
import statistics
import time

from hfjax_app.runtime.process import prepare

prepare()  # before jax and torch start

import jax  # noqa: E402
import numpy as np  # noqa: E402
from accelerate import init_empty_weights  # noqa: E402

from benchmarks.hardware import describe  # noqa: E402
from hfjax_app.images.lora import Factors, LoraFactors  # noqa: E402
from hfjax_app.images.merged_weights import MergedWeights, Part  # noqa: E402
from hfjax_app.images.networks import axes_on_devices  # noqa: E402
from hfjax_app.runtime.dtype_policy import DTYPES  # noqa: E402
from hfjax_app.runtime.memory import bytes_of  # noqa: E402
from hfjax_app.runtime.programs import Programs  # noqa: E402
from hfjax_app.runtime.seams.torchax import jax_dtype  # noqa: E402
from hfjax_app.runtime.warm_up import compile_all  # noqa: E402
from tests.planning.picture_configs import stable_diffusion_xl  # noqa: E402

RANK, ROUNDS, ADDITIONS = 16, 5, 30_000_000
ATTENTION = (".to_q.weight", ".to_k.weight", ".to_v.weight", ".to_out.0.weight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    dtype = jax_dtype(DTYPES[parser.parse_args().dtype])
    random, device = np.random.default_rng(0), jax.local_devices()[0]

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32)

    with init_empty_weights():
        unet = stable_diffusion_xl()["unet"][1]
    shapes = {name: tuple(p.shape) for name, p in unet.named_parameters() if name.endswith(ATTENTION)}
    weights = {name: jax.device_put(normal(*shape).astype(dtype), device) for name, shape in shapes.items()}
    factors = {
        name: Factors(up=normal(rows, RANK), down=normal(RANK, columns), shape=(rows, columns))
        for name, (rows, columns) in shapes.items()
    }
    lora = LoraFactors(name="random", weight=0.0, digest=b"", parts={"unet": factors})
    programs = Programs()
    part = Part(weights=weights, axes=axes_on_devices(unet, programs, dtype))
    merged = MergedWeights({"unet": part}, [lora])
    for spec, program in zip(merged.specs, compile_all(programs, merged.specs), strict=True):
        spec.join(program)

    def seconds(share: float) -> float:
        began = time.perf_counter()
        jax.block_until_ready(merged.of((("random", share),)))
        return time.perf_counter() - began

    fresh = [seconds(1 + number) for number in range(ROUNDS)]
    again = [seconds(ROUNDS) for _ in range(ROUNDS)]
    began = time.perf_counter()
    total = 0
    for number in range(ADDITIONS):
        total += number
    report = {
        "benchmark": "picture_loras",
        "hardware": describe(),
        "dtype": str(jax.numpy.dtype(dtype)),
        "layers": len(shapes),
        "merged_gb": bytes_of([weights]) / 1e9,
        "programs": len(merged.specs),
        "merge_s": statistics.median(fresh),
        "merges_s": fresh,
        "remembered_s": statistics.median(again),
        "loop_s": time.perf_counter() - began,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
