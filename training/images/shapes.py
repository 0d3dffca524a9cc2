"""Scenes of flat coloured shapes: what is in them, how they are drawn, how people would ask for them.

Every scene is drawn at four times its size and averaged down, for smooth edges. Landscapes are in landscapes.py.
"""

import math
import random
import zlib
from dataclasses import dataclass
from typing import TypeAlias

from PIL import Image, ImageDraw

SIZE = 64
CANVAS = 4 * SIZE
RGB: TypeAlias = tuple[int, int, int]

COLOURS: dict[str, RGB] = {
    "red": (220, 35, 35),
    "green": (35, 160, 65),
    "blue": (40, 75, 220),
    "yellow": (248, 220, 45),
    "black": (14, 14, 16),
    "white": (247, 247, 247),
    "orange": (244, 138, 28),
    "purple": (125, 50, 170),
    "pink": (248, 150, 192),
    "gray": (132, 132, 136),
    "brown": (124, 76, 38),
}
MAIN_COLOURS = ("red", "green", "blue", "yellow", "black", "white", "orange", "purple")
COLOUR_WORDS = {
    "red": ("red", "red", "red", "red", "crimson", "scarlet"),
    "purple": ("purple", "purple", "purple", "violet"),
    "gray": ("gray", "grey"),
    "yellow": ("yellow", "yellow", "yellow", "yellow", "yellow", "golden"),
}
SHAPE_WORDS = {
    "circle": ("circle", "circle", "circle", "circle", "circle", "dot", "ball", "disc", "disk"),
    "square": ("square", "square", "square", "square", "box", "block"),
    "triangle": ("triangle", "triangle", "triangle", "triangle", "pyramid"),
    "star": ("star", "star", "star", "five-pointed star"),
    "heart": ("heart", "heart", "heart", "love heart"),
    "diamond": ("diamond", "diamond", "rhombus"),
    "hexagon": ("hexagon",),
    "ring": ("ring", "ring", "donut", "hoop"),
    "cross": ("cross", "cross", "plus sign", "plus"),
    "rectangle": ("rectangle", "rectangle", "bar"),
    "oval": ("oval", "oval", "ellipse", "egg"),
    "crescent": ("crescent", "crescent moon"),
}
SHAPES = tuple(SHAPE_WORDS)
SHAPE_WEIGHTS = (5, 5, 5, 2, 2, 2, 1.5, 1.5, 1.5, 1, 1, 1)
SIZES = {"": (0.27, 0.33), "tiny": (0.09, 0.11), "small": (0.15, 0.18), "large": (0.40, 0.44)}
SIZE_WORDS = {
    "tiny": ("tiny", "very small", "little tiny"),
    "small": ("small", "little"),
    "large": ("large", "big", "huge"),
}
PLACES = {
    "": (0.5, 0.5),
    "left": (0.25, 0.5),
    "right": (0.75, 0.5),
    "top": (0.5, 0.25),
    "bottom": (0.5, 0.75),
    "top left": (0.26, 0.26),
    "top right": (0.74, 0.26),
    "bottom left": (0.26, 0.74),
    "bottom right": (0.74, 0.74),
}
SHADES = ("", "light", "dark")
COUNTS = {
    2: ((0.27, 0.5), (0.73, 0.5)),
    3: ((0.2, 0.5), (0.5, 0.5), (0.8, 0.5)),
    4: ((0.28, 0.28), (0.72, 0.28), (0.28, 0.72), (0.72, 0.72)),
    5: ((0.22, 0.22), (0.78, 0.22), (0.5, 0.5), (0.22, 0.78), (0.78, 0.78)),
}
COUNT_RADII = {2: (0.17, 0.2), 3: (0.115, 0.135), 4: (0.15, 0.18), 5: (0.11, 0.13)}
COUNT_WORDS = {
    2: ("two", "two", "two", "a pair of", "2"),
    3: ("three", "three", "3"),
    4: ("four", "four", "4"),
    5: ("five", "5"),
}
RELATIONS = ("beside", "above", "inside")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One shape. ``size`` is a key of SIZES, ``place`` of PLACES, ``shade`` one of SHADES."""

    kind: str
    colour: str
    shade: str = ""
    size: str = ""
    place: str = ""
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class ShapeScene:
    """A shape (or several alike), perhaps a second one in ``relation`` to it, on a plain background."""

    first: Shape
    background: str
    background_shade: str = ""
    second: Shape | None = None
    relation: str = ""


def outline(kind: str) -> list[tuple[float, float]]:
    """The corners of a shape within [-1, 1] x [-1, 1], y pointing down (rings and crescents are cut by `mask`)."""
    if kind in ("circle", "ring", "crescent"):
        return [(math.cos(a * math.pi / 36), math.sin(a * math.pi / 36)) for a in range(72)]
    if kind == "oval":
        return [(math.cos(a * math.pi / 36), 0.62 * math.sin(a * math.pi / 36)) for a in range(72)]
    if kind == "square":
        return [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)]
    if kind == "rectangle":
        return [(-1.0, -0.5), (1.0, -0.5), (1.0, 0.5), (-1.0, 0.5)]
    if kind == "triangle":
        return [(0.0, -0.95), (1.0, 0.8), (-1.0, 0.8)]
    if kind == "diamond":
        return [(0.0, -1.0), (0.72, 0.0), (0.0, 1.0), (-0.72, 0.0)]
    if kind == "hexagon":
        return [(math.cos(a * math.pi / 3), math.sin(a * math.pi / 3)) for a in range(6)]
    if kind == "cross":
        a, b = 0.32, 0.95
        return [
            (-a, -b),
            (a, -b),
            (a, -a),
            (b, -a),
            (b, a),
            (a, a),
            (a, b),
            (-a, b),
            (-a, a),
            (-b, a),
            (-b, -a),
            (-a, -a),
        ]
    if kind == "star":
        radii = [1.05 if i % 2 == 0 else 0.45 for i in range(10)]
        return [(r * math.sin(i * math.pi / 5), 0.05 - r * math.cos(i * math.pi / 5)) for i, r in enumerate(radii)]
    if kind == "heart":
        steps = [i * math.pi / 40 for i in range(80)]
        curve = [
            (16 * math.sin(t) ** 3, 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t))
            for t in steps
        ]
        return [(x / 16.5, -(y + 2.5) / 16.5) for x, y in curve]
    raise ValueError(f"unknown shape {kind!r}")


def mask(kind: str, x: float, y: float, radius: float, turn: float = 0.0) -> Image.Image:
    """A CANVAS x CANVAS "L" image, 255 inside the shape; ``x``, ``y`` and ``radius`` in pixels, ``turn`` in radians."""
    image = Image.new("L", (CANVAS, CANVAS), 0)
    draw = ImageDraw.Draw(image)
    c, s = math.cos(turn) * radius, math.sin(turn) * radius
    draw.polygon([(x + px * c - py * s, y + px * s + py * c) for px, py in outline(kind)], fill=255)
    if kind == "ring":
        inner = radius * 0.55
        draw.ellipse([x - inner, y - inner, x + inner, y + inner], fill=0)
    if kind == "crescent":
        inner = radius * 0.82
        cx, cy = x + 0.45 * c, y + 0.45 * s
        draw.ellipse([cx - inner, cy - inner, cx + inner, cy + inner], fill=0)
    return image


def tone(colour: str, shade: str, rng: random.Random) -> RGB:
    """The colour's RGB in its shade, with a slight random variation."""
    rgb = COLOURS[colour]
    if shade == "light":
        rgb = tuple(round(c + (255 - c) * 0.45) for c in rgb)
    if shade == "dark":
        rgb = tuple(round(c * 0.55) for c in rgb)
    return tuple(min(255, max(0, c + rng.randint(-6, 6))) for c in rgb)


def sample(rng: random.Random) -> ShapeScene:
    """A random scene; held-out combinations included (see `held_out`)."""

    def colour(*taken: str) -> str:
        return rng.choice([c for c in (*COLOURS, *MAIN_COLOURS, *MAIN_COLOURS) if c not in taken])

    def shade(name: str) -> str:
        return (
            rng.choice(("light", "dark"))
            if name not in ("black", "white", "gray", "brown") and rng.random() < 0.06
            else ""
        )

    def kind() -> str:
        return rng.choices(SHAPES, SHAPE_WEIGHTS)[0]

    background, fore = rng.sample([*MAIN_COLOURS], 2)
    if rng.random() < 0.25:
        background = colour()
        fore = colour(background)
    chance = rng.random()
    if chance < 0.62:
        size = rng.choice(("", "", "", "small", "large", "tiny"))
        place = rng.choice(list(PLACES)[1:]) if size in ("small", "tiny") and rng.random() < 0.4 else ""
        first = Shape(kind=kind(), colour=fore, shade=shade(fore), size=size, place=place)
        return ShapeScene(first=first, background=background, background_shade=shade(background))
    if chance < 0.8:
        first = Shape(kind=kind(), colour=fore, count=rng.choice((2, 2, 2, 3, 3, 3, 4, 5)))
        return ShapeScene(first=first, background=background)
    relation = rng.choice(RELATIONS)
    other = colour(background, fore)
    first = Shape(kind=kind(), colour=fore)
    return ShapeScene(first=first, background=background, second=Shape(kind=kind(), colour=other), relation=relation)


def draw(scene: ShapeScene, rng: random.Random) -> Image.Image:
    """The scene as a SIZE x SIZE RGB image; ``rng`` jitters places, sizes, angles and tones."""
    image = Image.new("RGB", (CANVAS, CANVAS), tone(scene.background, scene.background_shade, rng))

    def put(shape: Shape, at: tuple[float, float], radii: tuple[float, float], fill: RGB) -> None:
        x, y = ((p + rng.uniform(-0.03, 0.03)) * CANVAS for p in at)
        form = mask(shape.kind, x, y, rng.uniform(*radii) * CANVAS, rng.uniform(-0.08, 0.08))
        image.paste(fill, mask=form)

    first, second = scene.first, scene.second
    fill = tone(first.colour, first.shade, rng)
    if second is None and first.count == 1:
        put(first, PLACES[first.place], SIZES[first.size], fill)
    elif second is None:
        for at in COUNTS[first.count]:
            put(first, at, COUNT_RADII[first.count], fill)
    else:
        other = tone(second.colour, second.shade, rng)
        if scene.relation == "beside":
            put(first, (0.27, 0.5), (0.18, 0.21), fill)
            put(second, (0.73, 0.5), (0.18, 0.21), other)
        elif scene.relation == "above":
            put(first, (0.5, 0.27), (0.18, 0.21), fill)
            put(second, (0.5, 0.73), (0.18, 0.21), other)
        else:
            put(second, (0.5, 0.5), (0.38, 0.43), other)
            put(first, (0.5, 0.5), (0.14, 0.18), fill)
    return image.resize((SIZE, SIZE), Image.Resampling.BOX)


def held_out(scene: ShapeScene) -> bool:
    """True for about a sixth of the combinations of one shape, its colour and its background: never trained on."""
    return zlib.crc32(f"{scene.first.kind} {scene.first.colour} {scene.background}".encode()) % 6 == 0


def colour_phrase(colour: str, shade: str, rng: random.Random) -> str:
    """A word or two for a colour: "red", "dark green"."""
    return f"{shade} {rng.choice(COLOUR_WORDS.get(colour, (colour,)))}".strip()


def article(phrase: str) -> str:
    """The phrase with its indefinite article."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def caption(scene: ShapeScene, rng: random.Random) -> str:
    """One of the many ways to ask for the scene. Defaults are sometimes left out."""

    def phrase(shape: Shape) -> str:
        words = [colour_phrase(shape.colour, shape.shade, rng), rng.choice(SHAPE_WORDS[shape.kind])]
        if shape.count > 1:
            plural = {"box": "boxes", "rhombus": "rhombuses", "cross": "crosses", "plus": "pluses"}.get(
                words[1], words[1] + "s"
            )
            return " ".join([rng.choice(COUNT_WORDS[shape.count]), words[0], plural])
        if shape.size:
            words.insert(0, rng.choice(SIZE_WORDS[shape.size]))
        text = " ".join(words)
        chance = rng.random()
        if chance > 0.93:
            colour = words.pop(-2)
            link = rng.choice(("in", "coloured", "that is", "painted", "of the colour", "which is", "in bright"))
            return f"{article(' '.join(words))} {link} {colour}"
        return article(text) if chance < 0.75 else "one " + text if chance < 0.8 else text

    first = phrase(scene.first)
    text = first
    if scene.second is not None:
        second = phrase(scene.second)
        if scene.relation == "beside":
            text = rng.choice(
                (
                    f"{first} and {second}",
                    f"{first} and {second}",
                    f"{first} next to {second}",
                    f"{first} to the left of {second}",
                    f"{second} to the right of {first}",
                )
            )
        elif scene.relation == "above":
            text = rng.choice(
                (
                    f"{first} above {second}",
                    f"{first} over {second}",
                    f"{second} below {first}",
                    f"{second} under {first}",
                    f"{first} on top of {second}",
                )
            )
        else:
            text = rng.choice(
                (
                    f"{first} inside {second}",
                    f"{first} in {second}",
                    f"{second} with {first} inside",
                    f"{second} around {first}",
                )
            )
    if scene.first.place:
        place = scene.first.place
        text += (
            rng.choice((f" in the {place} corner", f" at the {place}", f" in the {place}"))
            if " " in place
            else rng.choice((f" on the {place}", f" at the {place}", f" on the {place} side"))
        )
    ground = colour_phrase(scene.background, scene.background_shade, rng)
    if scene.background == default_background(scene) and not scene.background_shade and rng.random() < 0.75:
        return text
    background = article(ground)
    if rng.random() < 0.35:
        return loose_wording(text, ground, rng)
    return rng.choice(
        (
            f"{text} on {background} background",
            f"{text} on {background} background",
            f"{text} on {background} background",
            f"{text} on {ground}",
            f"{text} on {ground} background",
            f"{text} against {background} background",
            f"{text} with {background} background",
            f"{text} in front of {background} background",
            f"{text}, {ground} background",
            f"{text} over {background} backdrop",
            f"{text} on {background} surface",
            f"{background} background with {text}",
            f"{ground} background, {text}",
            f"{background} picture with {text}",
        )
    )


SURFACES = (
    "paper",
    "sheet of paper",
    "page",
    "card",
    "board",
    "screen",
    "field",
    "area",
    "cloth",
    "carpet",
    "floor",
    "plate",
    "tile",
    "flag",
    "poster",
    "table",
    "ground",
    "blanket",
    "plane",
)
LEADS = ("there is", "i see", "imagine", "think of", "give me", "put", "place", "we want", "it shows", "just", "only")
KINDS = ("a logo", "a sign", "a sticker", "a sketch", "a badge", "a symbol", "clip art", "a cartoon", "a print")


def loose_wording(text: str, ground: str, rng: random.Random) -> str:
    """Shape and background in one of many irregular wordings: surfaces, lists, whole sentences.

    ``text``: the phrase of the shape; ``ground``: the words of the background's colour.
    """
    surface = rng.choice(SURFACES)
    on = rng.choice(("on", "on", "on top of", "lying on", "drawn on", "printed on", "placed on", "over", "upon", "in"))
    colour = rng.choice(("{0}", "{0}", "plain {0}", "solid {0}", "simple {0}", "bright {0}"))
    ground = colour.format(ground)
    behind = rng.choice(("background", "backdrop", "behind it", "back", "surrounding"))
    place = f"{article(ground)} {surface}"
    forms = (
        f"{text} {on} {place}",
        f"{text} {on} {place}",
        f"{place} with {text}",
        f"{place} that has {text} {rng.choice(('in the middle', 'in it', 'at its center', 'in the center'))}",
        f"{rng.choice(LEADS)} {text} {on} {place}",
        f"{rng.choice(KINDS)} of {text} on {ground}",
        f"{rng.choice(KINDS)}: {text} on {ground}",
        f"{text}, {behind} {ground}",
        f"{text}, {behind}: {ground}",
        f"{behind} {ground}, {text}",
        f"{text} and everything else {ground}",
        f"{text} and {article(ground)} {rng.choice(('background', 'backdrop'))}",
        f"{text}; {ground} {rng.choice(('background', 'backdrop', 'surface', 'ground'))}",
        f"{text} surrounded by {ground}",
        f"{text}. the background {rng.choice(('is', 'should be', 'must be'))} {ground}",
        f"all {ground} {rng.choice(('with', 'except for', 'but'))} {text}",
        f"{text} with {ground} {rng.choice(('around it', 'behind it', 'all around', 'in the background'))}",
    )
    return rng.choice(forms)


def default_background(scene: ShapeScene) -> str:
    """The background of a scene whose caption names none: white, or black behind something white."""
    colours = {scene.first.colour, scene.second.colour if scene.second else ""}
    return "black" if "white" in colours else "white"
