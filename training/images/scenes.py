"""The mixture that the model learns: numbered shapes and landscapes, all determined by a seed."""

import random
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image

from training.images import landscapes, shapes
from training.images.landscapes import Landscape
from training.images.shapes import MAIN_COLOURS, ShapeScene

Scene = ShapeScene | Landscape


def sample(rng: random.Random, landscape_share: float) -> Scene:
    """A random scene that training may see: held-out combinations are drawn again."""
    family = landscapes if rng.random() < landscape_share else shapes
    while True:
        scene = family.sample(rng)
        if not family.held_out(scene):
            return scene


def emphasis(scene: Scene) -> float:
    """How often the second half of the training sees the scene: plain shapes and landscapes with a thing more often."""
    if isinstance(scene, Landscape):
        return (0.5 if scene.sky in ("storm", "aurora", "rainbow") else 1.0) * (1.4 if scene.thing else 1.0)
    basic = scene.first.kind in ("circle", "square", "triangle")
    weight = 0.25 if scene.relation else 2.0 if basic else 1.2
    plain = scene.first.colour in MAIN_COLOURS and scene.background in MAIN_COLOURS
    return weight if plain and not scene.first.shade and not scene.background_shade else 0.5 * weight


def draw(scene: Scene, rng: random.Random) -> Image.Image:
    """The scene as a SIZE x SIZE RGB image."""
    return landscapes.draw(scene, rng) if isinstance(scene, Landscape) else shapes.draw(scene, rng)


def numbered(seed: int, count: int, landscape_share: float) -> Iterator[tuple[Scene, random.Random]]:
    """Scenes 0 to ``count`` - 1 of a seed, each with the generator that goes on to draw it and to word it."""
    for index in range(count):
        rng = random.Random(seed * 1_000_003 + index)
        yield sample(rng, landscape_share), rng


def to_tensor(images: list[Image.Image]) -> torch.Tensor:
    """uint8 [count, 3, SIZE, SIZE]."""
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2).contiguous()
