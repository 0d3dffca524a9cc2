"""Skies and lands: everything in a landscape but the thing that it is a picture of."""

import math

import numpy as np

from training.images.painter import DARK_SKIES, GRADIENTS, Painter, palm, pine, scatter_flowers
from training.images.shapes import CANVAS, RGB


def paint_sky(p: Painter, orb: str) -> None:
    """Gradient, stars, clouds, rainbow, lightning, sun or moon."""
    rng, w = p.rng, CANVAS
    p.gradient(GRADIENTS[p.sky], 0, w)
    if p.land != "city":
        p.gradient(GRADIENTS[p.sky], 0, p.horizon + 8)
    if p.sky in ("night", "aurora"):
        for _ in range(rng.randint(26, 36)):
            x, y = rng.uniform(0, w), rng.uniform(0, p.horizon - 10)
            p.disc(x, y, rng.choice((2.2, 2.8, 3.4)), (255, 250, 225))
    if p.sky == "aurora":
        for _ in range(3):
            x, tall = rng.uniform(0.1, 0.9) * w, rng.uniform(0.25, 0.4) * w
            hue = rng.choice(((30, 210, 120), (30, 210, 120), (120, 60, 190)))
            for step in range(7):
                p.glow(
                    x + (step - 3) * 14, p.horizon * 0.45 + 18 * math.sin(step), tall / 5, tuple(c // 5 for c in hue)
                )
    if p.sky == "rainbow":
        cx, cy, radius = w * rng.uniform(0.4, 0.6), p.horizon + 20, w * rng.uniform(0.4, 0.46)
        for i, hue in enumerate(
            ((228, 60, 60), (244, 150, 50), (250, 225, 80), (80, 185, 90), (70, 110, 220), (140, 80, 180))
        ):
            r = radius - 8 * i
            p.pen.arc([cx - r, cy - r, cx + r, cy + r], 180, 360, fill=hue, width=9)
    if orb == "moon":
        x, y = rng.uniform(0.2, 0.8) * w, rng.uniform(0.14, 0.24) * w
        p.orb_x = x
        p.glow(x, y, 34, (60, 60, 70))
        p.disc(x, y, 19, (250, 245, 215))
        if rng.random() < 0.4:
            p.disc(x + 9, y - 3, 16, GRADIENTS["night"][1])
    if orb == "sun":
        low = p.sky != "day"
        x, y = rng.uniform(0.22, 0.78) * w, (p.horizon - rng.uniform(6, 34) if low else rng.uniform(0.14, 0.22) * w)
        p.orb_x = x
        p.glow(x, y, 40, (80, 60, 20))
        p.disc(
            x,
            y,
            25 if low else 21,
            (255, 244, 190) if p.sky == "sunset" else (255, 236, 120) if not low else (255, 248, 214),
        )
    puffs = {"day": (0, 2), "cloudy": (4, 5), "storm": (4, 5), "sunset": (0, 2), "dawn": (0, 2), "rainbow": (0, 1)}.get(
        p.sky
    )
    if puffs:
        tint = {
            "day": (252, 253, 255),
            "rainbow": (250, 252, 255),
            "cloudy": (226, 230, 235),
            "storm": (76, 80, 94),
            "sunset": (240, 128, 104),
            "dawn": (255, 222, 216),
        }[p.sky]
        for _ in range(rng.randint(*puffs)):
            shade = rng.randint(-10, 0)
            p.cloud(
                rng.uniform(0, w),
                rng.uniform(0.1, 0.8) * p.horizon * 0.8,
                rng.uniform(18, 32),
                tuple(c + shade for c in tint),
            )
    if p.sky == "storm":
        x, y = rng.uniform(0.2, 0.8) * w, 0.12 * w
        for dx, dy in ((-16, 34), (12, 4), (-18, 40)):
            p.pen.line([x, y, x + dx, y + dy], fill=(255, 250, 190), width=6)
            x, y = x + dx, y + dy


def paint_water(p: Painter, top: float, bottom: float) -> None:
    """Water that mirrors the sky's colours, darker and bluer, with glints; the sun or moon leaves a bright lane."""
    stops = [
        tuple(round(0.45 * c + 0.55 * b) for c, b in zip(s, p.lit((30, 100, 190)), strict=True))
        for s in reversed(GRADIENTS[p.sky])
    ]
    p.gradient(stops, top, bottom)
    bright = tuple(min(255, c + 45) for c in stops[0])
    for _ in range(14):
        y = p.rng.uniform(top + 6, bottom)
        x, length = p.rng.uniform(0, CANVAS), p.rng.uniform(14, 40) * (0.5 + (y - top) / (CANVAS - top))
        p.pen.line([x, y, x + length, y], fill=bright, width=3)


def ridge(p: Painter, base: float, tall: float, fill: RGB, cap: RGB | None, peaks: int) -> None:
    """A row of peaks on ``base``, with snow ``cap`` where given."""
    start = p.rng.uniform(-0.3, 0.1)
    for i in range(peaks):
        x = (start + (i + 0.5) * 1.3 / peaks) * CANVAS
        h = tall * p.rng.uniform(0.75, 1.05)
        half = h * p.rng.uniform(0.75, 0.95)
        p.pen.polygon([(x, base - h), (x + half, base + 2), (x - half, base + 2)], fill=fill)
        shadow = tuple(round(c * 0.82) for c in fill)
        p.pen.polygon([(x, base - h), (x + half, base + 2), (x + 0.1 * half, base + 2)], fill=shadow)
        if cap:
            k = 0.42
            p.pen.polygon(
                [
                    (x, base - h),
                    (x + k * half, base - h * (1 - k)),
                    (x + 0.15 * half, base - h * 0.68),
                    (x - 0.1 * half, base - h * 0.5),
                    (x - k * half, base - h * (1 - k)),
                ],
                fill=cap,
            )


def paint_land(p: Painter) -> None:
    """The land of the scene, from the horizon to the bottom."""
    land, rng, w, y = p.land, p.rng, CANVAS, p.horizon
    if land in ("sea", "island"):
        paint_water(p, y, w)
        if p.orb_x is not None:
            lane(p)
        if land == "island":
            x = w * rng.uniform(0.42, 0.58)
            p.pen.ellipse([x - 74, y + 22, x + 74, y + 74], fill=p.lit((232, 208, 146)))
            p.pen.ellipse([x - 46, y + 18, x + 46, y + 50], fill=p.lit((92, 170, 80)))
            palm(p, x + rng.uniform(-14, 14), y + 36, 92)
    elif land == "beach":
        paint_water(p, y, w * 0.75)
        if p.orb_x is not None:
            lane(p, w * 0.7)
        p.wave(w * 0.7, 5, p.lit((236, 240, 240)), 1.0, 0.4)
        p.wave(w * 0.725, 5, p.lit((236, 212, 152)), 1.0, 0.4)
    elif land == "lake":
        for lift, fill in ((24, (110, 150, 140)), (12, (70, 124, 92))):
            p.wave(y - lift, 7, p.lit(fill), rng.uniform(1.0, 2.2))
        paint_water(p, y, w * 0.92)
        p.pen.rectangle([0, y, w, y + 7], fill=p.lit((60, 96, 96)))
        p.wave(w * 0.92, 5, p.lit((84, 156, 76)), 0.8)
    elif land == "desert":
        for i, fill in enumerate(((228, 178, 112), (238, 192, 122), (222, 164, 92), (236, 184, 110))):
            p.wave(y + i * 26, 9, p.lit(fill), rng.uniform(0.7, 1.4))
    elif land in ("meadow", "hills"):
        greens = ((112, 176, 120), (92, 170, 88), (116, 192, 80), (92, 172, 66))
        for i, fill in enumerate(greens):
            p.wave(
                y + i * 26 - (26 if land == "hills" else 0),
                20 - 2 * i if land == "hills" else 5,
                p.lit(fill),
                rng.uniform(0.9, 2.0) if land == "hills" else 0.8,
            )
        if land == "meadow":
            scatter_flowers(p, y + 50, 9, None)
    elif land == "field":
        for i, fill in enumerate(((140, 176, 84), (226, 190, 84), (236, 204, 98), (220, 180, 70))):
            p.wave(y + i * 22, 3, p.lit(fill), 0.6)
        for _ in range(26):
            x, yy = rng.uniform(0, w), rng.uniform(y + 40, w)
            p.pen.line([x, yy, x + 3, yy - 14], fill=p.lit((190, 146, 50)), width=4)
    elif land == "forest":
        p.wave(y - 14, 8, p.lit((92, 142, 110)))
        for row, (fill, tall) in enumerate((((58, 116, 84), 70), ((34, 92, 56), 88))):
            base = y + 26 + row * 34
            for x in range(-10, w + 20, 30):
                pine(p, x + rng.uniform(-9, 9), base + rng.uniform(-5, 5), tall * rng.uniform(0.8, 1.15), p.lit(fill))
            p.wave(base - 6, 4, p.lit(((70, 136, 76), (88, 156, 78))[row]), 0.8)
    elif land == "mountains":
        ridge(p, y, 96, p.lit((128, 142, 172)), p.lit((236, 242, 250), 0.8), 4)
        ridge(p, y + 12, 124, p.lit((98, 108, 134)), p.lit((248, 250, 255), 0.75), 2)
        p.wave(y + 6, 7, p.lit((78, 140, 88)), 1.2)
        p.wave(y + 36, 6, p.lit((94, 164, 84)), 0.9)
    elif land == "snow":
        for i, fill in enumerate(((206, 222, 240), (224, 234, 246), (238, 244, 250))):
            p.wave(y + i * 30, 10 - 2 * i, p.lit(fill, 0.75), rng.uniform(0.8, 1.6))
        for x in (rng.uniform(8, 50), rng.uniform(w - 60, w - 10), rng.uniform(w - 110, w - 70)):
            pine(p, x, y + rng.uniform(16, 36), rng.uniform(52, 78), p.lit((52, 104, 84)), snow=True)
    elif land == "city":
        skyline(p)


def lane(p: Painter, bottom: float = CANVAS) -> None:
    """The light of the sun or moon on the water below it."""
    hue = (255, 226, 140) if p.sky in ("sunset", "dawn", "day") else (214, 218, 232)
    y, half = p.horizon + 4, 17.0
    while y < bottom - 4:
        shift = p.rng.uniform(-7, 7)
        p.pen.rectangle([p.orb_x + shift - half, y, p.orb_x + shift + half, y + 4], fill=hue)
        y, half = y + 11, half * 0.97


def skyline(p: Painter) -> None:
    """Two rows of towers; windows glow when the sky is dark."""
    rng, w = p.rng, CANVAS
    dark = p.sky in (*DARK_SKIES, "sunset")
    for row, (fill, low, high) in enumerate((((136, 152, 178), 70, 140), ((84, 96, 122), 40, 110))):
        x = rng.uniform(-20, 0)
        while x < w:
            wide, tall = rng.uniform(24, 40), rng.uniform(low, high)
            top = w * 0.86 - tall
            p.pen.rectangle([x, top, x + wide, w], fill=p.lit(fill, 0.9))
            if row == 1:
                for yy in np.arange(top + 8, w * 0.84, 16):
                    for xx in np.arange(x + 6, x + wide - 8, 12):
                        if rng.random() < 0.6:
                            p.pen.rectangle([xx, yy, xx + 6, yy + 8], fill=(255, 222, 120) if dark else (196, 220, 240))
            x += wide + rng.uniform(0, 6)
    p.pen.rectangle([0, w * 0.92, w, w], fill=p.lit((70, 76, 88)))
