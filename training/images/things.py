"""The things that stand, float or fly in a landscape: one painter each, all with the same arguments.

``x``, ``base``: the middle of the thing's foot in canvas pixels; ``hue``: its colour under the scene's light, None for
the usual one.
"""

from collections.abc import Callable

from training.images import painter
from training.images.painter import Painter
from training.images.shapes import CANVAS, RGB


def shaded(rgb: RGB, factor: float) -> RGB:
    """A darker (or, above 1, lighter) tone."""
    return tuple(min(255, round(c * factor)) for c in rgb)


def window_light(p: Painter) -> RGB:
    """Windows glow in the dark and mirror the sky by day."""
    return (255, 224, 120) if p.sky in ("night", "aurora", "storm", "sunset") else p.lit((176, 214, 240))


def house(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    wall = hue or p.lit((246, 236, 214), 0.7)
    w, h = 38, 46
    p.pen.rectangle([x + 14, base - h - 40, x + 24, base - h], fill=p.lit((120, 80, 70)))
    p.pen.rectangle([x - w, base - h, x + w, base], fill=wall)
    roof = p.lit((176, 66, 52)) if not hue or hue[0] < 1.6 * max(hue[1:]) else p.lit((92, 62, 52))
    p.pen.polygon([(x - w - 9, base - h), (x, base - h - 40), (x + w + 9, base - h)], fill=roof)
    p.pen.rectangle([x - 9, base - 27, x + 9, base], fill=p.lit((110, 70, 44)))
    for side in (-24, 24):
        p.pen.rectangle([x + side - 7, base - 36, x + side + 7, base - 20], fill=window_light(p))


def cabin(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    wall = hue or p.lit((138, 92, 54))
    p.pen.rectangle([x - 38, base - 36, x + 38, base], fill=wall)
    for y in (base - 27, base - 18, base - 9):
        p.pen.line([x - 38, y, x + 38, y], fill=shaded(wall, 0.75), width=3)
    p.pen.polygon([(x - 50, base - 34), (x, base - 78), (x + 50, base - 34)], fill=p.lit((88, 58, 42)))
    p.pen.rectangle([x - 22, base - 28, x - 6, base - 13], fill=window_light(p))
    p.pen.rectangle([x + 8, base - 28, x + 24, base], fill=shaded(wall, 0.55))


def castle(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    wall = hue or p.lit((168, 166, 172), 0.9)
    p.pen.rectangle([x - 44, base - 56, x + 44, base], fill=wall)
    for dx in (-40, -20, 0, 20, 40):
        p.pen.rectangle([x + dx - 6, base - 66, x + dx + 6, base - 54], fill=wall)
    for dx, tall in ((-48, 88), (48, 88), (0, 108)):
        p.pen.rectangle([x + dx - 14, base - tall, x + dx + 14, base], fill=shaded(wall, 0.88))
        p.pen.polygon(
            [(x + dx - 18, base - tall), (x + dx, base - tall - 32), (x + dx + 18, base - tall)],
            fill=p.lit((84, 92, 160)),
        )
        p.pen.rectangle([x + dx - 4, base - tall + 14, x + dx + 4, base - tall + 28], fill=window_light(p))
    p.pen.pieslice([x - 14, base - 32, x + 14, base - 4], 180, 360, fill=p.lit((76, 50, 40)))
    p.pen.rectangle([x - 14, base - 18, x + 14, base], fill=p.lit((76, 50, 40)))


def lighthouse(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    stripe = hue or p.lit((206, 50, 48), 0.6)
    tall = 108
    for i in range(5):
        low, high = base - tall * i / 5, base - tall * (i + 1) / 5
        a, b = 20 - 1.8 * i, 20 - 1.8 * (i + 1)
        p.pen.polygon(
            [(x - a, low), (x + a, low), (x + b, high), (x - b, high)],
            fill=stripe if i % 2 == 0 else p.lit((246, 246, 246), 0.6),
        )
    p.pen.rectangle([x - 15, base - tall - 5, x + 15, base - tall], fill=p.lit((60, 60, 70)))
    p.pen.rectangle([x - 9, base - tall - 21, x + 9, base - tall - 5], fill=(255, 236, 140))
    p.pen.polygon([(x - 14, base - tall - 20), (x, base - tall - 36), (x + 14, base - tall - 20)], fill=stripe)


def boat(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    hull = hue or p.lit((150, 92, 52), 0.6)
    p.pen.line([x, base - 16, x, base - 100], fill=p.lit((90, 64, 44)), width=6)
    sail = p.lit((250, 248, 240), 0.5)
    p.pen.polygon([(x + 5, base - 98), (x + 5, base - 26), (x + 44, base - 26)], fill=sail)
    p.pen.polygon([(x - 5, base - 86), (x - 5, base - 26), (x - 32, base - 26)], fill=shaded(sail, 0.9))
    p.pen.polygon([(x - 54, base - 20), (x + 56, base - 20), (x + 36, base + 8), (x - 36, base + 8)], fill=hull)
    p.pen.rectangle([x - 36, base + 9, x + 36, base + 15], fill=shaded(hull, 0.7))


def tree(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    p.pen.rectangle([x - 7, base - 52, x + 7, base], fill=p.lit((112, 76, 48)))
    leaf = hue or p.lit((54, 140, 60))
    for dx, dy, r in ((-24, -62, 27), (24, -62, 27), (0, -86, 33)):
        p.disc(x + dx, base + dy, r, leaf)
    p.disc(x - 10, base - 94, 14, shaded(leaf, 1.15))


def pine(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    painter.pine(p, x, base, 124, hue or p.lit((36, 104, 66)), snow=p.land == "snow")


def palm(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    painter.palm(p, x, base, 112)


def cactus(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    green = hue or p.lit((50, 136, 72), 0.85)

    def arm(points: list[tuple[float, float]], width: int) -> None:
        p.pen.line(points, fill=green, width=width, joint="curve")
        for px, py in (points[0], points[-1]):
            p.disc(px, py, width / 2 - 0.5, green)

    arm([(x, base), (x, base - 96)], 25)
    arm([(x, base - 34), (x - 35, base - 34), (x - 35, base - 66)], 16)
    arm([(x, base - 48), (x + 35, base - 48), (x + 35, base - 80)], 16)


def tent(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    cloth = hue or p.lit((232, 120, 50), 0.6)
    p.pen.polygon([(x - 54, base), (x, base - 66), (x + 54, base)], fill=cloth)
    p.pen.polygon(
        [(x - 16, base), (x, base - 66), (x + 16, base)],
        fill=(255, 222, 130) if p.sky in ("night", "aurora") else shaded(cloth, 0.5),
    )


def balloon(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    cloth = hue or p.lit((222, 60, 60), 0.45)
    y = CANVAS * p.rng.uniform(0.26, 0.32)
    r = 46
    for side in (-1, 1):
        p.pen.line([x + side * 26, y + 34, x + side * 9, y + 74], fill=p.lit((90, 70, 50)), width=3)
    p.pen.polygon([(x - 41, y + 22), (x + 41, y + 22), (x + 13, y + 60), (x - 13, y + 60)], fill=cloth)
    p.disc(x, y, r, cloth)
    light = tuple(round(c + (255 - c) * 0.4) for c in cloth)
    p.pen.ellipse([x - 15, y - r, x + 15, y + r + 10], fill=light)
    p.pen.rectangle([x - 11, y + 74, x + 11, y + 90], fill=p.lit((140, 96, 56)))


def windmill(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    wall = hue or p.lit((240, 232, 216), 0.8)
    p.pen.polygon([(x - 28, base), (x + 28, base), (x + 17, base - 78), (x - 17, base - 78)], fill=wall)
    p.pen.pieslice([x - 19, base - 98, x + 19, base - 60], 180, 360, fill=p.lit((150, 70, 54)))
    p.pen.rectangle([x - 8, base - 22, x + 8, base], fill=p.lit((104, 70, 48)))
    turn = p.rng.uniform(0.6, 0.95)
    for sx, sy in ((turn, 1), (1, -turn), (-turn, -1), (-1, turn)):
        p.pen.line([x, base - 80, x + sx * 42, base - 80 + sy * 42], fill=p.lit((112, 82, 60)), width=9)


def birds(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    ink = hue or ((220, 224, 236) if p.sky in ("night", "aurora", "storm") else (40, 44, 56))
    for _ in range(5):
        bx, by = p.rng.uniform(24, CANVAS - 24), p.rng.uniform(0.14, 0.42) * CANVAS
        p.pen.line([bx - 15, by - 8, bx, by, bx + 15, by - 8], fill=ink, width=6, joint="curve")


def flowers(p: Painter, x: float, base: float, hue: RGB | None) -> None:
    painter.scatter_flowers(
        p,
        CANVAS * (0.92 if p.land == "lake" else 0.74),
        24 if p.land != "lake" else 12,
        hue or p.lit((226, 60, 80), 0.5),
    )


PAINTERS: dict[str, Callable[[Painter, float, float, RGB | None], None]] = {
    paint.__name__: paint
    for paint in (
        house,
        cabin,
        castle,
        lighthouse,
        boat,
        tree,
        pine,
        palm,
        cactus,
        tent,
        balloon,
        windmill,
        birds,
        flowers,
    )
}
