"""Little landscapes: a kind of land under a kind of sky, perhaps with a thing in it; drawn from the sky forward."""

import random
import zlib
from dataclasses import dataclass

from PIL import Image

from training.images.lands import paint_land, paint_sky
from training.images.painter import Painter
from training.images.shapes import CANVAS, COLOURS, SIZE
from training.images.things import PAINTERS

SKIES = ("day", "sunset", "dawn", "night", "cloudy", "storm", "aurora", "rainbow")
SKY_WEIGHTS = (5, 4, 2, 4, 2, 1, 1, 1)
LANDS = ("sea", "lake", "beach", "desert", "meadow", "hills", "forest", "mountains", "city", "snow", "island", "field")
LAND_WEIGHTS = (4, 4, 2.5, 3.5, 3, 3, 3, 4, 3, 2, 1.5, 1.5)
THINGS = (
    "house",
    "cabin",
    "castle",
    "lighthouse",
    "boat",
    "tree",
    "pine",
    "palm",
    "cactus",
    "tent",
    "balloon",
    "windmill",
    "birds",
    "flowers",
)
TINTABLE = ("house", "boat", "tent", "balloon", "flowers")
DRY = ("beach", "desert", "meadow", "hills", "forest", "mountains", "snow", "field")
ALLOWED = {
    "house": (*DRY, "sea", "lake"),
    "cabin": ("lake", "meadow", "hills", "forest", "mountains", "snow"),
    "castle": ("sea", "lake", "meadow", "hills", "forest", "mountains", "snow", "desert"),
    "lighthouse": ("sea", "beach", "island", "hills"),
    "boat": ("sea", "lake", "beach"),
    "tree": ("lake", "meadow", "hills", "mountains", "snow", "field", "sea"),
    "pine": ("lake", "snow", "hills", "mountains", "meadow"),
    "palm": ("beach", "desert", "sea", "lake"),
    "cactus": ("desert", "desert", "hills"),
    "tent": ("lake", "beach", "desert", "meadow", "hills", "forest", "mountains", "snow", "field"),
    "balloon": LANDS,
    "windmill": ("meadow", "hills", "field", "lake", "sea"),
    "birds": LANDS,
    "flowers": ("meadow", "hills", "field", "lake", "mountains"),
}


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """``land`` under ``sky``; ``thing`` may be "", its ``colour`` "" for the usual; ``orb``: "", "sun" or "moon"."""

    land: str
    sky: str
    thing: str = ""
    colour: str = ""
    orb: str = ""


def sample(rng: random.Random) -> Landscape:
    """A random landscape; held-out combinations included (see `held_out`)."""
    sky = rng.choices(SKIES, SKY_WEIGHTS)[0]
    thing, colour = "", ""
    if rng.random() < 0.66:
        thing = rng.choices(THINGS, (5, 2, 3, 2, 4, 3, 2, 3, 4, 3, 4, 2, 1.5, 1.5))[0]
        lands = ALLOWED[thing]
        land = rng.choices(lands, [LAND_WEIGHTS[LANDS.index(name)] for name in lands])[0]
        if thing in TINTABLE and rng.random() < 0.65:
            colour = rng.choice(
                ("red", "red", "blue", "yellow", "white", "green", "orange", "purple", "pink", "black", "brown", "gray")
            )
    else:
        land = rng.choices(LANDS, LAND_WEIGHTS)[0]
    orb = ""
    if sky in ("day", "sunset", "dawn") and rng.random() < (0.3 if sky == "day" else 0.7):
        orb = "sun"
    if sky == "night" and rng.random() < 0.5:
        orb = "moon"
    return Landscape(land=land, sky=sky, thing=thing, colour=colour, orb=orb)


def held_out(scene: Landscape) -> bool:
    """True for about a tenth of the combinations of land, sky and thing: never trained on."""
    return bool(scene.thing) and zlib.crc32(f"{scene.land} {scene.sky} {scene.thing}".encode()) % 10 == 0


def draw(scene: Landscape, rng: random.Random) -> Image.Image:
    """The landscape as a SIZE x SIZE RGB image."""
    painter = Painter(scene.sky, scene.land, rng)
    paint_sky(painter, scene.orb)
    paint_land(painter)
    if scene.thing:
        place_thing(painter, scene)
    return painter.image.resize((SIZE, SIZE), Image.Resampling.BOX)


def place_thing(p: Painter, scene: Landscape) -> None:
    """The thing that the caption names, large enough to be seen at SIZE pixels."""
    rng, w = p.rng, CANVAS
    x = w * rng.choice((rng.uniform(0.26, 0.42), rng.uniform(0.42, 0.58), rng.uniform(0.58, 0.74)))
    base = {"sea": 0.80, "lake": 0.9, "beach": 0.86, "island": 0.7}.get(scene.land, 0.84) * w + rng.uniform(-6, 6)
    if scene.land == "sea" and scene.thing not in ("boat", "balloon", "birds"):
        side = -1 if x < w / 2 else 1
        edge = w / 2 - side * w * 0.18
        bank = w if side > 0 else 0
        p.pen.polygon(
            [(edge, w), (edge + side * 40, base + 10), (bank, base - 10), (bank, w)], fill=p.lit((92, 156, 78))
        )
        x = w / 2 + side * w * rng.uniform(0.2, 0.28)
    if scene.thing == "boat":
        base = {"sea": 0.78, "lake": 0.78, "beach": 0.64}[scene.land] * w + rng.uniform(-8, 8)
    colour = COLOURS[scene.colour] if scene.colour else None
    PAINTERS[scene.thing](p, x, base, p.lit(colour, 0.45) if colour else None)
