"""The scenes that the image model learns from, and the pixel check that scores it. No network is trained here."""

import random

import numpy as np
import pytest
from PIL import Image

from training.images import captions, landscapes, reading, scenes, shapes, tokenizer
from training.images.evaluate import PromptSpec, check, contact_sheet, held_out_prompts
from training.images.shapes import COLOUR_WORDS, COLOURS, MAIN_COLOURS, SHAPES, SIZE, Shape, ShapeScene


def spec(colour: str, shape: str, background: str, count: int = 1) -> PromptSpec:
    """What a picture must show; `check` does not read the prompt."""
    return PromptSpec(prompt="", colour=colour, shape=shape, background=background, count=count)


@pytest.mark.parametrize("kind", SHAPES)
def test_check_recognises_what_is_drawn(kind: str) -> None:
    """A perfect picture of every shape, in changing colours, sizes and angles, passes every check."""
    rng = random.Random(kind)
    for size in ("", "small", "large"):
        colour, background = rng.sample(MAIN_COLOURS, 2)
        scene = ShapeScene(first=Shape(kind=kind, colour=colour, size=size), background=background)
        checks = check(spec(colour, kind, background), shapes.draw(scene, rng))
        assert checks.colour
        assert checks.shape
        assert checks.background
        assert checks.count


def test_check_sees_each_mistake() -> None:
    """Each mistake fails its own check; an empty picture has no shape."""
    scene = ShapeScene(first=Shape(kind="circle", colour="red", count=2), background="white")
    image = shapes.draw(scene, random.Random(0))
    assert not check(spec("orange", "circle", "white", 2), image).colour
    assert not check(spec("red", "hexagon", "white", 2), image).shape
    assert not check(spec("red", "circle", "yellow", 2), image).background
    assert not check(spec("red", "circle", "white", 3), image).count
    empty = check(spec("red", "circle", "white"), Image.new("RGB", (SIZE, SIZE), COLOURS["white"]))
    assert empty.background
    assert not empty.colour
    assert not empty.shape
    assert not empty.count


def test_held_out_combinations_are_never_trained_on() -> None:
    """The score is meaningful only if its combinations are new to the model."""
    trained = set()
    for scene, _ in scenes.numbered(1, 3000, 0.3):
        if isinstance(scene, ShapeScene):
            trained.add((scene.first.colour, scene.first.kind, scene.background))
        else:
            assert not landscapes.held_out(scene)
    asked = {(item.colour, item.shape, item.background) for item in held_out_prompts()}
    assert len(asked) >= 50
    assert not asked & trained


def test_scenes_follow_from_the_seed() -> None:
    """The same seed gives the same pictures and wordings, another seed gives others."""

    def made(seed: int) -> list[tuple[bytes, str]]:
        pairs = scenes.numbered(seed, 12, 0.5)
        return [(scenes.draw(scene, rng).tobytes(), captions.caption(scene, rng)) for scene, rng in pairs]

    assert made(3) == made(3)
    assert made(3) != made(4)


def test_every_land_sky_and_thing_is_drawn() -> None:
    """Every combination that can be sampled gives a full picture with some contrast."""
    rng = random.Random(0)
    for thing, lands in landscapes.ALLOWED.items():
        for land in lands:
            scene = landscapes.Landscape(land=land, sky=rng.choice(landscapes.SKIES), thing=thing)
            picture = landscapes.draw(scene, rng)
            assert picture.size == (SIZE, SIZE)
            assert np.asarray(picture).std() > 8, scene


def test_captions_name_the_colour_and_the_background() -> None:
    """A caption leaves out the background only where it is the usual one, and the shape's colour never."""
    for scene, rng in scenes.numbered(5, 400, 0.0):
        text = captions.caption(scene, rng)
        assert any(word in text for word in COLOUR_WORDS.get(scene.first.colour, (scene.first.colour,))), text
        named = any(word in text for word in COLOUR_WORDS.get(scene.background, (scene.background,)))
        assert named or scene.background == shapes.default_background(scene), text


def test_reading_asks_what_the_scene_can_answer() -> None:
    """Every answer lies within its question's options, for shapes and for landscapes."""
    for scene, _ in scenes.numbered(9, 200, 0.5):
        found = reading.answers(scene)
        assert len(found) == len(reading.QUESTIONS)
        for answer, options in zip(found, reading.QUESTIONS, strict=True):
            assert answer == reading.UNASKED or 0 <= answer < len(options)


def test_tokenizer_keeps_known_words_whole_and_splits_the_rest() -> None:
    """Case does not matter, every known word is one token, and no text is unknown to it."""
    words = tokenizer.train(["a red circle on a white background"] * 2)
    assert words.tokenize("A RED circle") == ["a</w>", "red</w>", "circle</w>"]
    strange = "zürich 日本 \N{PILE OF POO}"
    assert words.unk_token_id not in words(strange, add_special_tokens=False).input_ids
    ids = words(strange, padding="max_length", truncation=True).input_ids
    assert len(ids) == tokenizer.LENGTH
    assert ids[0] == words.bos_token_id


def test_contact_sheet_holds_every_picture() -> None:
    """Nine pictures in rows of eight make two rows, each picture over its label."""
    sheet = np.asarray(contact_sheet([Image.new("RGB", (SIZE, SIZE), "red")] * 9, ["a red square"] * 9))
    red = (sheet == (255, 0, 0)).all(-1)
    assert red.sum() == 9 * (2 * SIZE) ** 2
    assert red.any(0).sum() == 8 * 2 * SIZE
    assert (sheet[~red] < 100).any()
