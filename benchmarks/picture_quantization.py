"""The cost of int8 weights for image models: pictures of the embedded model, and outputs of small random denoisers.

`python -m benchmarks.picture_quantization` draws the same prompts and seeds with float32 and int8 weights, and states
the peak signal-to-noise ratio of the pictures (PSNR, in dB), and for random networks of the families of today the
cosine of the outputs for random inputs. The last line of output is JSON.
"""

import json
import math
import statistics
from typing import Any

from hfjax_app.runtime.process import prepare

prepare()  # before jax and torch start

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.hardware import describe  # noqa: E402
from hfjax_app.embedded import resolve  # noqa: E402
from hfjax_app.images import ImageGenerator, ImageRequest  # noqa: E402
from hfjax_app.images.networks import Storage  # noqa: E402
from hfjax_app.runtime.checkpoints.int8 import round_in_place  # noqa: E402
from tests.images.families import family  # noqa: E402

PROMPTS = ("a large red circle on a white background", "a blue square", "a small yellow triangle on a black background")
SEEDS = (0, 1, 2, 3)
FAMILIES = ("Flux.1 dev", "Flux.2 klein", "Qwen-Image", "Z-Image", "Stable Diffusion 3.5")


def pixels(quantize: str) -> list[np.ndarray]:
    """Pictures of the embedded model by the model card's settings, float32 [height, width, 3]."""
    generator = ImageGenerator.from_pretrained(resolve("images"), storage=Storage(quantize=quantize))
    requests = [ImageRequest(prompt, seed=seed) for prompt in PROMPTS for seed in SEEDS]
    return [list(generator.generate(request))[-1].pictures[0].pixels for request in requests]


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return -10 * math.log10(float(np.square(one - other).mean()))


def cosine(name: str) -> float:
    """Of a random denoiser's first output with its weights and with int8 ones, in torch, float64 sums."""
    outputs = []
    for is_rounded in (False, True):
        pipeline = family(name)
        if is_rounded:
            round_in_place(pipeline.transformer)
        seen: list[torch.Tensor] = []
        forward = pipeline.transformer.forward

        def noting(*args: Any, forward: Any = forward, seen: list[torch.Tensor] = seen, **kwargs: Any) -> Any:
            found = forward(*args, **kwargs)
            first = found[0] if isinstance(found, tuple) else found.sample
            seen.append(torch.cat([each.flatten() for each in first]) if isinstance(first, list) else first.flatten())
            return found

        pipeline.transformer.forward = noting
        generator = torch.Generator().manual_seed(0)
        options = {"width": 32, "height": 32, "generator": generator, "output_type": "latent"}
        pipeline(prompt="a red dot", num_inference_steps=2, **options)
        outputs.append(seen[0].double())
    return float(torch.nn.functional.cosine_similarity(*outputs, dim=0))


def main() -> None:
    found = [psnr(*pair) for pair in zip(pixels("none"), pixels("int8"), strict=True)]
    report: dict[str, Any] = {
        "benchmark": "picture_quantization",
        "hardware": describe(),
        "psnr": {"median": statistics.median(found), "least": min(found), "pictures": len(found)},
        "cosine": {name: cosine(name) for name in FAMILIES},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
