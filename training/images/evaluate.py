"""The held-out score: prompts for combinations that training never saw, and a check of the pictures' pixels.

`check` needs no network: it finds the background along the border, the shape as what differs from it, and compares
the shape's outline with every shape that the drawings know. Landscapes are checked by eye, on a contact sheet.
"""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from diffusers import StableDiffusionPipeline
from PIL import Image, ImageDraw, ImageFont

from training.images import shapes
from training.images.shapes import COLOURS, MAIN_COLOURS, SHAPES, Shape, ShapeScene, article

STEPS = 20
GUIDANCE = 4.0
TEMPLATES = (
    "{thing} on {a_ground} background",
    "{thing} on {ground}",
    "{ground} background with {thing}",
    "{thing} against {a_ground} background",
    "{bare} on {a_ground} background",
    "draw {thing} on {a_ground} background",
    "{thing}, {ground} background",
    "{thing} with {a_ground} background",
    "{BARE} ON {GROUND}",
    "a picture of {thing} in front of {a_ground} background",
)
# Wordings that the grammar of the captions does not make, with words that it does not know.
UNUSUAL_TEMPLATES = (
    "{thing} painted on {a_ground} canvas",
    "{a_ground} wall with {thing} on it",
    "{thing}; the background is {ground}",
    "i would like to see {thing} on a plain {ground} background",
    "simple icon: {thing}, {ground} backdrop",
)
LANDSCAPES = (
    "a house by the sea at sunset",
    "a snowy mountain under a starry sky",
    "a red boat on a lake",
    "a cactus in the desert",
    "a castle on a hill at dawn",
    "a hot air balloon over the sea",
    "a yellow tent in the forest at night",
    "a lighthouse on the coast in a storm",
    "a palm tree on the beach at sunset",
    "a city skyline at night",
    "a blue house in the snow",
    "a wooden cabin in the mountains under the northern lights",
    "a windmill in a wheat field",
    "a rainbow over green hills",
    "a white sailboat on the ocean in the moonlight",
    "a tropical island at sunrise",
    "a tree in a meadow on a cloudy day",
    "birds flying over the sea at sunset",
    "a green balloon over the desert at sunset",
    "red flowers in a meadow",
    "a pine tree in the snow at night",
    "the moon over a calm lake",
    "a purple tent by the lake at dusk",
    "a forest in the early morning",
)
SHOWN_SHAPES = (
    "a red circle on a white background",
    "two green triangles",
    "a small blue square",
    "a yellow star on a black background",
    "a pink heart",
    "three orange circles on a blue background",
    "a white ring on a purple background",
    "a red square and a blue circle",
)


@dataclass(frozen=True, kw_only=True)
class PromptSpec:
    """A prompt and what its picture must show."""

    prompt: str
    colour: str
    shape: str
    background: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What the pixels say; ``count`` is whether as many separate shapes were found as asked for."""

    colour: bool
    shape: bool
    background: bool
    count: bool


def held_out_prompts(count: int = 100, seed: int = 2026, templates: Sequence[str] = TEMPLATES) -> list[PromptSpec]:
    """Prompts for held-out combinations of the eight main colours: six in ten circles, squares and triangles."""
    rng = random.Random(seed)
    specs = []
    for index in range(count):
        kinds = ("circle", "square", "triangle") if index % 10 < 6 else SHAPES[3:]
        while True:
            colour, background = rng.sample(MAIN_COLOURS, 2)
            kind = rng.choice(kinds)
            if shapes.held_out(ShapeScene(first=Shape(kind=kind, colour=colour), background=background)):
                break
        size = rng.choice(("", "", "", "small ", "big ", "large "))
        bare = f"{size}{colour} {kind}"
        words = {"bare": bare, "thing": article(bare), "ground": background, "a_ground": article(background)}
        words |= {"BARE": bare.upper(), "GROUND": background.upper()}
        prompt = rng.choice(templates).format(**words)
        specs.append(PromptSpec(prompt=prompt, colour=colour, shape=kind, background=background))
    return specs


def counted_prompts(count: int = 30, seed: int = 7) -> list[PromptSpec]:
    """Prompts for two or three shapes alike."""
    rng = random.Random(seed)
    specs = []
    for _ in range(count):
        colour, background = rng.sample(MAIN_COLOURS, 2)
        kind, number = rng.choice(("circle", "square", "triangle")), rng.choice((2, 3))
        prompt = f"{'two' if number == 2 else 'three'} {colour} {kind}s on a {background} background"
        specs.append(PromptSpec(prompt=prompt, colour=colour, shape=kind, background=background, count=number))
    return specs


def nearest_colour(rgb: np.ndarray) -> str:
    """The name of the nearest of the known colours; ``rgb`` is [3], 0 to 255."""
    return min(COLOURS, key=lambda name: float(np.square(rgb - np.array(COLOURS[name], dtype=float)).sum()))


def components(mask: np.ndarray, least: int = 12) -> list[np.ndarray]:
    """Connected regions of a boolean image [height, width] with at least ``least`` pixels, largest first."""
    left, regions = mask.copy(), []
    while left.any():
        region = np.zeros_like(mask)
        stack = [tuple(np.argwhere(left)[0])]
        left[stack[0]] = False
        while stack:
            y, x = stack.pop()
            region[y, x] = True
            for ny, nx in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if 0 <= ny < mask.shape[0] and 0 <= nx < mask.shape[1] and left[ny, nx]:
                    left[ny, nx] = False
                    stack.append((ny, nx))
        if region.sum() >= least:
            regions.append(region)
    return sorted(regions, key=lambda region: -int(region.sum()))


def normalised(mask: np.ndarray) -> tuple[np.ndarray, float]:
    """The contents of a boolean image, stretched to 32x32 (0 to 1), and its width over its height before that."""
    ys, xs = np.where(mask)
    box = mask[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    image = Image.fromarray((box * 255).astype(np.uint8)).resize((32, 32), Image.Resampling.BILINEAR)
    return np.asarray(image) / 255, box.shape[1] / box.shape[0]


@cache
def templates() -> tuple[tuple[str, np.ndarray, float], ...]:
    """Every shape, upright and slightly turned, as `normalised` sees it."""
    found = []
    for kind in SHAPES:
        for turn in (-0.08, 0.0, 0.08):
            drawn = shapes.mask(kind, shapes.CANVAS / 2, shapes.CANVAS / 2, shapes.CANVAS * 0.3, turn)
            found.append((kind, *normalised(np.asarray(drawn.resize((64, 64), Image.Resampling.BOX)) > 127)))
    return tuple(found)


def nearest_shape(mask: np.ndarray) -> str:
    """The shape whose outline overlaps best (soft intersection over union, less a penalty for other proportions)."""
    form, aspect = normalised(mask)

    def likeness(template: tuple[str, np.ndarray, float]) -> float:
        _, other, proportion = template
        overlap = np.minimum(form, other).sum() / np.maximum(form, other).sum()
        return overlap - 0.6 * abs(math.log(aspect / proportion))

    return max(templates(), key=likeness)[0]


def check(spec: PromptSpec, image: Image.Image) -> Checks:
    """Looks at a 64x64 picture: is the background, the shape's colour, the shape, the number of shapes as asked for?"""
    pixels = np.asarray(image.convert("RGB"), dtype=float)
    border = np.concatenate([pixels[:2].reshape(-1, 3), pixels[-2:].reshape(-1, 3), pixels[:, 0], pixels[:, -1]])
    ground = np.median(border, axis=0)
    background = nearest_colour(ground) == spec.background
    distance = np.sqrt(np.square(pixels - ground).sum(-1))
    strong = distance[distance > 40]
    regions = components(distance > 0.5 * np.quantile(strong, 0.75)) if len(strong) else []
    if not regions:
        return Checks(colour=False, shape=False, background=background, count=False)
    inside = np.median(pixels[regions[0]], axis=0)
    return Checks(
        colour=nearest_colour(inside) == spec.colour,
        shape=all(nearest_shape(region) == spec.shape for region in regions[: spec.count]),
        background=background,
        count=len(regions) == spec.count,
    )


def generate(
    pipeline: StableDiffusionPipeline, prompts: Sequence[str], guidance: float = GUIDANCE, steps: int = STEPS
) -> list[Image.Image]:
    """One picture a prompt; the seed of each is its index."""
    pictures = []
    for start in range(0, len(prompts), 20):
        part = list(prompts[start : start + 20])
        generators = [torch.Generator().manual_seed(start + i) for i in range(len(part))]
        result = pipeline(part, num_inference_steps=steps, guidance_scale=guidance, generator=generators)
        pictures += result.images
    return pictures


def load(folder: Path) -> StableDiffusionPipeline:
    """The saved pipeline in float32, silent."""
    pipeline = StableDiffusionPipeline.from_pretrained(folder, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def score(specs: Sequence[PromptSpec], pictures: Sequence[Image.Image]) -> dict[str, float]:
    """The share of passed checks, by kind, and of pictures that pass all."""
    checks = [asdict(check(spec, picture)) for spec, picture in zip(specs, pictures, strict=True)]
    shares = {name: sum(v[name] for v in checks) / len(checks) for name in checks[0]}
    return {**shares, "all": sum(all(v.values()) for v in checks) / len(checks)}


def contact_sheet(
    pictures: Sequence[Image.Image], labels: Sequence[str], columns: int = 8, zoom: int = 2
) -> Image.Image:
    """Pictures in rows, each with its prompt below in two or three lines."""
    side, gap, text = shapes.SIZE * zoom, 8, 42
    rows = math.ceil(len(pictures) / columns)
    sheet = Image.new("RGB", (columns * (side + gap) + gap, rows * (side + text + gap) + gap), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    for i, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        x, y = gap + i % columns * (side + gap), gap + i // columns * (side + text + gap)
        sheet.paste(picture.resize((side, side), Image.Resampling.LANCZOS), (x, y))
        lines = [""]
        for word in label.split():
            if font.getlength(f"{lines[-1]} {word}") > side:
                lines.append("")
            lines[-1] = f"{lines[-1]} {word}".strip()
        pen.multiline_text((x, y + side + 2), "\n".join(lines), fill="black", font=font, spacing=2)
    return sheet


def main(folder: Path, guidance: float = GUIDANCE) -> None:
    """Scores the pipeline in ``folder`` and writes its contact sheet; the last line printed is JSON."""
    pipeline = load(folder)
    result = {"steps": STEPS, "guidance": guidance}
    sets = {
        "held_out": held_out_prompts(),
        "held_out_unusual_wording": held_out_prompts(40, 11, UNUSUAL_TEMPLATES),
        "two_or_three": counted_prompts(),
    }
    for name, specs in sets.items():
        pictures = generate(pipeline, [spec.prompt for spec in specs], guidance)
        result[name] = score(specs, pictures)
        for spec, picture in zip(specs, pictures, strict=True):
            wrong = [name for name, right in asdict(check(spec, picture)).items() if not right]
            if wrong:
                print(f"{name}: {spec.prompt}: {', '.join(wrong)}")
    prompts = [*LANDSCAPES, *SHOWN_SHAPES]
    contact_sheet(generate(pipeline, prompts, guidance), prompts).save(folder / "contact_sheet.png", optimize=True)
    print(json.dumps(result))


if __name__ == "__main__":
    import sys

    main(Path(sys.argv[1]))
