"""Seconds per image, compared with diffusers on torch, eager and with torch.compile: the same pipeline, 20 steps.

`python -m benchmarks.images` measures the embedded pipeline and a UNet of Stable Diffusion 1.5's shape with fewer
channels (random weights, 256x256 pixels), one picture and four at a time. All contenders are warm, take turns in every
round, and the median counts; a ratio over 1 means that this app is faster. torch draws four pictures as one batch.
Processor time is reported as well, because it is comparable on a busy machine too.
"""

import argparse
import copy
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from tqdm import tqdm

from hfjax_app.runtime.process import prepare

prepare()  # before jax and torch start

import torch  # noqa: E402
from diffusers import (  # noqa: E402
    AutoencoderKL,
    AutoPipelineForText2Image,
    DDIMScheduler,
    DiffusionPipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer  # noqa: E402

from benchmarks.hardware import let_torch_compile  # noqa: E402
from hfjax_app.embedded import resolve  # noqa: E402
from hfjax_app.images import ImageGenerator, ImageRequest  # noqa: E402

STEPS = 20
GUIDANCE = 4.0
PROMPT = "a red circle on a white background"
OURS = "hfjax_app"
CONTENDERS = (OURS, "torch eager", "torch.compile")


def reduced_stable_diffusion() -> StableDiffusionPipeline:
    """The levels of Stable Diffusion 1.5's UNet and autoencoder with a fifth of the channels, and latents of 32x32."""
    torch.manual_seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["<|startoftext|>", "<|endoftext|>", *letters, *(letter + "</w>" for letter in letters)]
    width = 192
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(pieces),
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=4,
            num_attention_heads=4,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    unet = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(64, 128, 256, 256),
        cross_attention_dim=width,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        sample_size=256,
        block_out_channels=(32, 64, 128, 128),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=4,
    )
    return StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=text_encoder.eval(),
        tokenizer=CLIPTokenizer(vocab={p: i for i, p in enumerate(pieces)}, merges=[], model_max_length=77),
        unet=unet.eval(),
        scheduler=DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def compiled(pipeline: DiffusionPipeline) -> DiffusionPipeline:
    """A copy of the pipeline with torch.compile on its two expensive networks, as diffusers documents it."""
    changed = copy.deepcopy(pipeline)
    changed.unet = torch.compile(changed.unet)
    changed.vae.decode = torch.compile(changed.vae.decode)
    return changed


def contenders(pipeline: DiffusionPipeline, images: int, names: list[str]) -> dict[str, Callable[[], Any]]:
    """A function for each named contender that draws `images` pictures."""
    generator = ImageGenerator(pipeline)
    request = ImageRequest(PROMPT, steps=STEPS, guidance_scale=GUIDANCE, seed=1, images=images)
    options = {"num_inference_steps": STEPS, "guidance_scale": GUIDANCE, "num_images_per_prompt": images}

    def in_torch(drawn_by: DiffusionPipeline) -> Callable[[], Any]:
        drawn_by.set_progress_bar_config(disable=True)
        return lambda: drawn_by(PROMPT, **options)

    makers = {
        OURS: lambda: lambda: list(generator.generate(request)),
        "torch eager": lambda: in_torch(pipeline),
        "torch.compile": lambda: in_torch(compiled(pipeline)),
    }
    return {name: makers[name]() for name in names}


def measure(runs: dict[str, Callable[[], Any]], rounds: int, label: str) -> dict[str, tuple[float, float]]:
    """Median seconds and median processor seconds of each contender; they take turns."""
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in tqdm(range(rounds + 1), label):
        for name, run in runs.items():
            started = time.perf_counter(), time.process_time()
            run()
            if turn:  # the first one warms up
                seen[name].append((time.perf_counter() - started[0], time.process_time() - started[1]))
    return {name: tuple(map(statistics.median, zip(*values, strict=True))) for name, values in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measured rounds (default: 5)")
    parser.add_argument("--pipeline", choices=("embedded", "reduced"), help="only this one")
    parser.add_argument("--images", type=int, choices=(1, 4), help="only this many pictures at a time")
    parser.add_argument("--against", choices=CONTENDERS[1:], action="append", help="only this one (default: both)")
    arguments = parser.parse_args()
    let_torch_compile()
    made = {
        "embedded": lambda: AutoPipelineForText2Image.from_pretrained(resolve("images"), dtype=torch.float32),
        "reduced": reduced_stable_diffusion,
    }
    names = [OURS, *(arguments.against or CONTENDERS[1:])]
    results = []
    for pipeline in [arguments.pipeline] if arguments.pipeline else made:
        for images in [arguments.images] if arguments.images else (1, 4):
            runs = contenders(made[pipeline](), images, names)
            medians = measure(runs, arguments.rounds, f"{pipeline}, {images} pictures")
            each = {name: [seconds / images for seconds in pair] for name, pair in medians.items()}
            ratios = {
                name: [round(a / b, 3) for a, b in zip(each[name], each[OURS], strict=True)] for name in names[1:]
            }
            result = {"pipeline": pipeline, "images": images, "seconds_and_processor_seconds_per_image": each}
            results.append(result | {"ratios": ratios})
            print(f"{pipeline}, {images} at a time, {STEPS} steps; seconds and processor seconds per image:")
            for name, pair in each.items():
                ratio = "   {:.2f}x {:.2f}x".format(*ratios[name]) if name in ratios else ""
                print(f"  {name:14s} {pair[0]:8.3f} {pair[1]:8.3f}{ratio}")
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "load": os.getloadavg()[0],
    }
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    print(
        json.dumps(
            {"benchmark": "images", "steps": STEPS, "machine": machine, "versions": versions, "results": results}
        )
    )


if __name__ == "__main__":
    main()
