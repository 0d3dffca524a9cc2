"""Makes the embedded image model from a seed: `python -m training.images`. Prints its held-out score at the end.

What has been made is kept in the work folder: the text encoder after its first lesson, the autoencoder, both networks
of the denoiser after each lesson, and every 500 steps what the lesson under way needs. A second run goes on from there.
On one free core it takes about two and a half hours.
"""

import argparse
import copy
import shutil
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from training.checkpoint import Checkpoint
from training.images import autoencoder, captions, diffusion, evaluate, reading, scenes, tokenizer

OUT = Path(__file__).parents[2] / "hfjax_app" / "embedded" / "images"
LANDSCAPE_SHARE = 0.42
WORDINGS = 6


def main() -> None:
    """Autoencoder, latents, denoiser, saved pipeline, score."""
    parser = argparse.ArgumentParser(prog="python -m training.images", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT, help="where the pipeline is written")
    parser.add_argument("--work", type=Path, default=Path("out/images"), help="where unfinished work is kept")
    parser.add_argument("--autoencoder-steps", type=int, default=7000)
    parser.add_argument("--reading-steps", type=int, default=500)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--emphasis-steps", type=int, default=2500)
    parser.add_argument("--repeat-steps", type=int, default=4800, help="more of the second lesson, from a lower rate")
    parser.add_argument("--long-steps", type=int, default=9500, help="the last and longest lesson")
    parser.add_argument("--scenes", type=int, default=40_000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)

    words, images, ids, targets, weights = scene_data(options)
    text_encoder = reading_text_encoder(options, words, ids, targets)
    vae = trained_autoencoder(options, images)
    latents = autoencoder.encode(vae, images)
    scale = 1 / latents.std().item()
    vae.register_to_config(scaling_factor=scale)
    report(f"{len(images)} scenes, {len(words)} tokens, scaling factor {scale:.4f}")

    unet, empty = diffusion.build_unet(), diffusion.token_ids(words, [""])[0]
    lessons = (
        (options.steps, torch.ones_like(weights), 1.5e-3, False),
        (options.emphasis_steps, weights, 1.5e-3, True),
        (options.repeat_steps, weights, 1.2e-3, True),
        (options.long_steps, weights, 1.2e-3, True),
    )
    for number, (steps, chosen, peak, decay) in enumerate(lessons):
        folder = options.work / f"lesson-{number + 1}"
        if folder.exists():
            text_encoder = CLIPTextModel.from_pretrained(folder / "text_encoder")
            unet = UNet2DConditionModel.from_pretrained(folder / "unet")
            continue
        checkpoint = Checkpoint(options.work / "checkpoint.pt")
        text_encoder, unet = diffusion.train(
            text_encoder.train(),
            unet.train(),
            latents * scale,
            ids,
            empty,
            weights=chosen,
            steps=steps,
            peak=peak,
            decay=decay,
            seed=options.seed + number,
            report=report,
            checkpoint=checkpoint,
        )
        fresh = folder.with_name(folder.name + ".new")
        text_encoder.save_pretrained(fresh / "text_encoder")
        unet.save_pretrained(fresh / "unet")
        fresh.rename(folder)
        checkpoint.remove()
    save(options.work / "pipeline", vae, words, text_encoder, unet)
    for item in (options.work / "pipeline").iterdir():
        target = options.out / item.name
        if item.is_dir():
            shutil.copytree(item, target, dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(item, target)
    evaluate.main(options.out)


def report(line: str) -> None:
    """Prints with the time of day, at once."""
    print(time.strftime("%H:%M:%S"), line, flush=True)


def scene_data(options: argparse.Namespace) -> tuple[CLIPTokenizer, torch.Tensor, ...]:
    """Tokenizer; of each scene: pixels [3, 64, 64], token ids [WORDINGS, length], answers [questions], emphasis."""
    images, texts, targets, weights = [], [], [], []
    for scene, rng in scenes.numbered(options.seed + 1, options.scenes, LANDSCAPE_SHARE):
        images.append(scenes.draw(scene, rng))
        texts += [captions.caption(scene, rng) for _ in range(WORDINGS)]
        targets.append(reading.answers(scene))
        weights.append(scenes.emphasis(scene))
    words = tokenizer.train(texts)
    ids = diffusion.token_ids(words, texts).view(len(images), WORDINGS, -1)
    return words, scenes.to_tensor(images), ids, torch.tensor(targets), torch.tensor(weights)


def reading_text_encoder(
    options: argparse.Namespace, words: CLIPTokenizer, ids: torch.Tensor, targets: torch.Tensor
) -> CLIPTextModel:
    """The text encoder of an earlier run after its first lesson, or a new one."""
    folder = options.work / "text_encoder"
    if folder.exists():
        return CLIPTextModel.from_pretrained(folder)
    text_encoder = diffusion.build_text_encoder(words)
    reading.train(text_encoder, ids, targets, steps=options.reading_steps, seed=options.seed, report=report)
    text_encoder.save_pretrained(folder)
    return text_encoder


def trained_autoencoder(options: argparse.Namespace, images: torch.Tensor) -> AutoencoderKL:
    """The autoencoder of an earlier run, or a new one."""
    folder = options.work / "autoencoder"
    if folder.exists():
        return AutoencoderKL.from_pretrained(folder).eval()
    vae = autoencoder.build()
    autoencoder.train(vae, images, options.autoencoder_steps, options.seed, report)
    vae.save_pretrained(folder)
    return vae.eval()


def save(
    folder: Path, vae: AutoencoderKL, words: CLIPTokenizer, text_encoder: CLIPTextModel, unet: UNet2DConditionModel
) -> None:
    """Writes a StableDiffusionPipeline in float16."""
    words.backend_tokenizer.no_padding()
    words.backend_tokenizer.no_truncation()
    pipeline = StableDiffusionPipeline(
        vae=copy_half(vae),
        text_encoder=copy_half(text_encoder),
        tokenizer=words,
        unet=copy_half(unet),
        scheduler=diffusion.build_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder, safe_serialization=True)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)


def copy_half(module: torch.nn.Module) -> torch.nn.Module:
    """A float16 copy in evaluation mode."""
    return copy.deepcopy(module).half().eval()


if __name__ == "__main__":
    main()
