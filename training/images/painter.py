"""The painter of landscapes: a canvas under a sky's light, its brushes, and the plants that lands and things share.

Coordinates are pixels of a CANVAS x CANVAS picture.
"""

import math
import random

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from training.images.shapes import CANVAS, RGB

GRADIENTS: dict[str, list[RGB]] = {
    "day": [(70, 150, 232), (150, 205, 248), (214, 236, 250)],
    "rainbow": [(84, 152, 220), (150, 200, 240), (214, 232, 244)],
    "sunset": [(72, 44, 118), (196, 72, 104), (250, 140, 66), (255, 206, 100)],
    "dawn": [(120, 156, 218), (232, 176, 200), (255, 206, 180), (255, 232, 200)],
    "night": [(6, 9, 34), (16, 24, 66), (34, 48, 102)],
    "aurora": [(6, 10, 34), (10, 32, 62), (20, 62, 80)],
    "cloudy": [(128, 144, 164), (170, 182, 196), (206, 212, 218)],
    "storm": [(38, 42, 56), (64, 70, 86), (100, 106, 120)],
}
# The light that falls on everything under a sky: factors for red, green and blue.
LIGHT = {
    "day": (1.0, 1.0, 1.0),
    "rainbow": (0.96, 1.0, 1.0),
    "sunset": (0.82, 0.58, 0.56),
    "dawn": (0.98, 0.86, 0.88),
    "night": (0.38, 0.44, 0.60),
    "aurora": (0.36, 0.50, 0.56),
    "cloudy": (0.78, 0.80, 0.82),
    "storm": (0.52, 0.54, 0.60),
}
DARK_SKIES = ("night", "aurora", "storm")
HORIZONS = {
    "sea": 0.52,
    "lake": 0.56,
    "beach": 0.45,
    "desert": 0.62,
    "meadow": 0.62,
    "hills": 0.58,
    "forest": 0.62,
    "mountains": 0.66,
    "city": 0.78,
    "snow": 0.6,
    "island": 0.56,
    "field": 0.58,
}


class Painter:
    """A picture in progress: the canvas, the light that tints what is drawn, and where the horizon is."""

    def __init__(self, sky: str, land: str, rng: random.Random) -> None:
        self.sky, self.land, self.rng = sky, land, rng
        self.orb_x: float | None = None  # where the sun or moon is, once painted
        self.horizon = (HORIZONS[land] + rng.uniform(-0.03, 0.03)) * CANVAS
        self.image = Image.new("RGB", (CANVAS, CANVAS))
        self.pen = ImageDraw.Draw(self.image)

    def lit(self, rgb: RGB, strength: float = 1.0) -> RGB:
        """``rgb`` under the sky's light; ``strength`` below 1 keeps more of the thing's own colour."""
        light = LIGHT[self.sky]
        return tuple(round(c * (1 - strength + strength * f)) for c, f in zip(rgb, light, strict=True))

    def wave(self, base: float, height: float, fill: RGB, waves: float = 1.5, phase: float | None = None) -> None:
        """A rolling layer of land from ``base`` (its mean upper edge) down to the bottom."""
        phase = self.rng.uniform(0, 2 * math.pi) if phase is None else phase
        edge = []
        for x in range(0, CANVAS + 8, 8):
            a = 2 * math.pi * waves * x / CANVAS + phase
            edge.append((x, base + height * (math.sin(a) + 0.3 * math.sin(2.3 * a + 1))))
        self.pen.polygon([*edge, (CANVAS, CANVAS), (0, CANVAS)], fill=fill)

    def gradient(self, stops: list[RGB], top: float, bottom: float) -> None:
        """Full-width rows from ``top`` to ``bottom`` that blend through the stops."""
        first, last = round(top), round(bottom)
        at = np.linspace(0, len(stops) - 1, max(2, last - first))
        columns = [np.interp(at, np.arange(len(stops)), [s[c] for s in stops]) for c in range(3)]
        strip = Image.fromarray(np.stack(columns, -1).round().astype(np.uint8)[:, None])
        self.image.paste(strip.resize((CANVAS, strip.height), Image.Resampling.NEAREST), (0, first))

    def glow(self, x: float, y: float, radius: float, rgb: RGB) -> None:
        """Adds a soft round light."""
        yy, xx = np.mgrid[0:CANVAS:4, 0:CANVAS:4]
        fall = np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / (2 * radius**2))
        light = Image.fromarray((fall[..., None] * np.array(rgb)).astype(np.uint8)).resize(
            (CANVAS, CANVAS), Image.Resampling.BILINEAR
        )
        self.image.paste(ImageChops.add(self.image, light))

    def disc(self, x: float, y: float, radius: float, fill: RGB) -> None:
        """A filled circle."""
        self.pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=fill)

    def cloud(self, x: float, y: float, size: float, fill: RGB) -> None:
        """A flat-bottomed cloud of four puffs."""
        for dx, dy, r in ((-1.0, 0.1, 0.5), (-0.3, -0.2, 0.7), (0.45, -0.05, 0.6), (1.0, 0.15, 0.42)):
            self.disc(x + dx * size, y + dy * size, r * size, fill)
        self.pen.rectangle([x - size, y + 0.1 * size, x + size, y + 0.57 * size], fill=fill)


def pine(p: Painter, x: float, base: float, tall: float, fill: RGB, snow: bool = False) -> None:
    """A fir of three tiers."""
    p.pen.rectangle([x - tall * 0.05, base - tall * 0.2, x + tall * 0.05, base], fill=p.lit((90, 60, 40)))
    for i, (low, half) in enumerate(((0.12, 0.34), (0.38, 0.26), (0.62, 0.18))):
        tip = base - tall * (low + 0.42)
        p.pen.polygon([(x, tip), (x + tall * half, base - tall * low), (x - tall * half, base - tall * low)], fill=fill)
        if snow and i > 0:
            p.pen.polygon(
                [(x, tip), (x + tall * half * 0.5, tip + tall * 0.2), (x - tall * half * 0.5, tip + tall * 0.2)],
                fill=p.lit((240, 246, 252)),
            )


def scatter_flowers(p: Painter, top: float, count: int, hue: RGB | None) -> None:
    """Flower heads spread over the ground below ``top``; of mixed colours where none is given."""
    for _ in range(count):
        x, y = p.rng.uniform(6, CANVAS - 6), p.rng.uniform(top, CANVAS - 6)
        p.disc(
            x,
            y,
            4.5 if hue is None else 8,
            p.lit(hue or p.rng.choice(((240, 80, 90), (250, 220, 80), (250, 250, 250), (220, 120, 220))), 0.7),
        )
        if hue is not None:
            p.disc(x, y, 3, p.lit((250, 225, 110), 0.5))


def palm(p: Painter, x: float, base: float, tall: float) -> None:
    """A leaning trunk with six fronds."""
    lean = p.rng.choice((-1, 1)) * tall * 0.15
    p.pen.line(
        [x, base, x + lean * 0.4, base - tall * 0.5, x + lean, base - tall],
        fill=p.lit((134, 94, 56)),
        width=max(6, round(tall * 0.08)),
        joint="curve",
    )
    leaf = p.lit((40, 140, 64))
    for dx, dy in ((-0.5, -0.02), (-0.4, 0.24), (-0.3, -0.24), (0.3, -0.24), (0.5, -0.02), (0.4, 0.24)):
        cx, cy, ex, ey = x + lean, base - tall, x + lean + dx * tall, base - tall + dy * tall
        p.pen.polygon(
            [
                (cx, cy - 4),
                ((cx + ex) / 2, (cy + ey) / 2 - tall * 0.11),
                (ex, ey),
                ((cx + ex) / 2, (cy + ey) / 2 + tall * 0.02),
                (cx, cy + 4),
            ],
            fill=leaf,
        )
