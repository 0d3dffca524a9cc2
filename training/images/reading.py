"""The text encoder's pretraining: it reads a caption and predicts the contents of the scene, before any denoising.

A step costs a fifteenth of a denoising step, and the denoiser then gets states in which the colours of shape and
background are already separate. The answers are read from the states after the caption's end; the
linear layer that reads them is thrown away.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import CLIPTextModel

from training.images.autoencoder import rate
from training.images.landscapes import LANDS, SKIES, THINGS, Landscape
from training.images.scenes import Scene
from training.images.shapes import COLOURS, PLACES, RELATIONS, SHADES, SHAPES, SIZES

BATCH = 64
PEAK_LEARNING_RATE = 1e-3
UNASKED = -100  # the target of a question that a scene has no answer to

SHAPE_QUESTIONS = (
    tuple(COLOURS),
    SHADES,
    SHAPES,
    tuple(COLOURS),
    SHADES,
    (1, 2, 3, 4, 5),
    tuple(SIZES),
    tuple(PLACES),
    ("", *RELATIONS),
    ("", *COLOURS),
    ("", *SHAPES),
)
LANDSCAPE_QUESTIONS = (LANDS, SKIES, ("", *THINGS), ("", *COLOURS), ("", "sun", "moon"))
QUESTIONS = (("shapes", "landscape"), *SHAPE_QUESTIONS, *LANDSCAPE_QUESTIONS)


def answers(scene: Scene) -> list[int]:
    """The index of the right answer to each of QUESTIONS, or UNASKED."""
    if isinstance(scene, Landscape):
        values = (scene.land, scene.sky, scene.thing, scene.colour, scene.orb)
        found = [options.index(value) for options, value in zip(LANDSCAPE_QUESTIONS, values, strict=True)]
        return [1, *[UNASKED] * len(SHAPE_QUESTIONS), *found]
    first, second = scene.first, scene.second
    values = (
        first.colour,
        first.shade,
        first.kind,
        scene.background,
        scene.background_shade,
        first.count,
        first.size,
        first.place,
        scene.relation,
        second.colour if second else "",
        second.kind if second else "",
    )
    found = [options.index(value) for options, value in zip(SHAPE_QUESTIONS, values, strict=True)]
    return [0, *found, *[UNASKED] * len(LANDSCAPE_QUESTIONS)]


def train(
    text_encoder: CLIPTextModel,
    captions: torch.Tensor,
    targets: torch.Tensor,
    *,
    steps: int,
    seed: int,
    report: Callable[[str], None],
) -> None:
    """Trains in place on ``captions``, int64 [count, variants, length], and ``targets``, int64 [count, questions]."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [len(options) for options in QUESTIONS]
    reader = torch.nn.Linear(text_encoder.config.hidden_size, sum(sizes))
    parameters = [*text_encoder.parameters(), *reader.parameters()]
    optimizer = torch.optim.AdamW(parameters, PEAK_LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.01)
    end, began = text_encoder.config.eos_token_id, time.monotonic()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate(step, steps, PEAK_LEARNING_RATE)
        pick = torch.randint(0, len(captions), (BATCH,), generator=generator)
        wording = torch.randint(0, captions.shape[1], (BATCH,), generator=generator)
        ids, target = captions[pick, wording], targets[pick]
        with torch.autocast("cpu", torch.bfloat16):
            states = text_encoder(ids).last_hidden_state
        after = (ids == end).unsqueeze(-1).float()
        mean = (states.float() * after).sum(1) / after.sum(1)
        parts = reader(mean).split(sizes, -1)
        pairs = list(zip(parts, target.unbind(1), strict=True))
        errors = [F.cross_entropy(part, answer, ignore_index=UNASKED, reduction="sum") for part, answer in pairs]
        loss = sum(errors) / BATCH
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if (step + 1) % 200 == 0:
            right = [(part.argmax(-1) == answer)[answer != UNASKED] for part, answer in pairs]
            share, seconds = torch.cat(right).float().mean().item(), time.monotonic() - began
            report(f"reading step {step + 1}/{steps} loss {loss.item():.3f} right {share:.3f} seconds {seconds:.0f}")
