"""How people would ask for a scene: a small grammar, so that words combine freely and nothing is learned by heart."""

import random

from training.images import shapes
from training.images.landscapes import Landscape
from training.images.shapes import ShapeScene, article

OPENINGS = (
    "a picture of",
    "an image of",
    "a drawing of",
    "a painting of",
    "a photo of",
    "an illustration of",
    "draw",
    "please draw",
    "draw me",
    "show me",
    "paint",
    "make",
    "i want",
    "a simple picture of",
    "generate",
)
ENDINGS = (
    ", please",
    ", digital art",
    ", flat design",
    ", vector art",
    ", minimalist",
    ", high quality",
    ", simple",
    ", beautiful",
    ", detailed",
    ".",
    "!",
    " please",
    ", illustration",
)
ADJECTIVES = ("small", "little", "old", "lonely", "beautiful", "pretty", "big", "lovely", "tall", "single")

TIMES = {
    "day": (
        "on a sunny day",
        "under a blue sky",
        "in the daytime",
        "on a clear day",
        "during the day",
        "in summer",
        "at noon",
        "in the sunshine",
        "in daylight",
        "on a bright day",
    ),
    "sunset": (
        "at sunset",
        "at sunset",
        "at sunset",
        "at dusk",
        "in the evening",
        "under an orange sky",
        "at sundown",
        "during sunset",
        "at twilight",
        "under a red sky",
    ),
    "dawn": (
        "at dawn",
        "at dawn",
        "at sunrise",
        "in the morning",
        "in the early morning",
        "under a pink sky",
        "at daybreak",
    ),
    "night": (
        "at night",
        "at night",
        "at night",
        "under a starry sky",
        "under a starry sky",
        "under the stars",
        "on a starry night",
        "at midnight",
        "in the dark",
        "under a night sky",
        "with stars",
        "under a sky full of stars",
    ),
    "cloudy": (
        "on a cloudy day",
        "under a cloudy sky",
        "under gray clouds",
        "with clouds",
        "on an overcast day",
        "under a gray sky",
        "in cloudy weather",
    ),
    "storm": (
        "in a storm",
        "during a thunderstorm",
        "in a thunderstorm",
        "with lightning",
        "under dark clouds",
        "in stormy weather",
        "during a storm",
    ),
    "aurora": (
        "under the northern lights",
        "with the northern lights",
        "under the aurora",
        "with an aurora",
        "under the aurora borealis",
    ),
    "rainbow": ("with a rainbow", "under a rainbow", "after the rain", "and a rainbow"),
}
SKY_NOUNS = {
    "day": ("a blue sky", "a sunny day", "a clear sky"),
    "sunset": ("a sunset", "sunset", "an orange sky", "a red sunset", "a beautiful sunset", "the evening sky"),
    "dawn": ("dawn", "a sunrise", "sunrise", "a pink sky", "morning"),
    "night": ("a starry night", "a starry sky", "stars", "the night sky", "night", "a night sky"),
    "cloudy": ("clouds", "a cloudy sky", "gray clouds", "an overcast sky"),
    "storm": ("a storm", "a thunderstorm", "lightning", "dark clouds", "a stormy sky"),
    "aurora": ("northern lights", "the northern lights", "an aurora", "aurora borealis", "a green aurora"),
    "rainbow": ("a rainbow", "a rainbow", "a colorful rainbow"),
}
ORB_TIMES = {
    "moon": (
        "under the moon",
        "in the moonlight",
        "under a full moon",
        "with the moon in the sky",
        "with a moon",
        "by moonlight",
        "with the moon and stars",
        "at night with a moon",
    ),
    ("sun", "day"): ("under the sun", "with the sun in the sky", "with a bright sun", "in the sun"),
    ("sun", "sunset"): ("with a setting sun", "as the sun sets", "with the sun going down", "at sunset with the sun"),
    ("sun", "dawn"): ("with a rising sun", "as the sun rises", "with the sun coming up"),
}
LAND_NOUNS = {
    "sea": ("the sea", "the ocean", "a calm sea", "the open sea", "the water", "a blue sea", "an ocean"),
    "lake": ("a lake", "a calm lake", "the lake", "a quiet lake", "a pond"),
    "beach": ("a beach", "the beach", "a sandy beach", "the shore"),
    "desert": ("a desert", "the desert", "sand dunes", "the dunes", "a sandy desert"),
    "meadow": ("a meadow", "a green meadow", "grassland", "a grassy field", "a garden", "a green field"),
    "hills": ("green hills", "hills", "rolling hills", "the hills", "a hill", "a valley"),
    "forest": ("a forest", "the forest", "the woods", "a pine forest", "a dark forest"),
    "mountains": (
        "mountains",
        "a snowy mountain",
        "snowy mountains",
        "the mountains",
        "a mountain",
        "mountain peaks",
        "the alps",
    ),
    "city": ("a city", "a city skyline", "the city", "skyscrapers", "a town", "tall buildings"),
    "snow": ("a snowy field", "snow", "a winter landscape", "a snowy landscape", "snowy hills", "winter"),
    "island": ("an island", "a small island", "a tropical island", "an island in the sea", "a desert island"),
    "field": ("a wheat field", "a golden field", "a field", "a yellow field", "a corn field"),
}
LAND_PLACES = {
    "sea": (
        "by the sea",
        "by the sea",
        "near the sea",
        "by the ocean",
        "at the sea",
        "on the coast",
        "at the seaside",
        "next to the sea",
    ),
    "lake": ("by a lake", "by the lake", "near a lake", "at the lake", "beside a lake", "next to a lake"),
    "beach": ("on a beach", "on the beach", "at the beach", "on the sand", "on a sandy beach"),
    "desert": ("in the desert", "in the desert", "in a desert", "on the sand dunes", "among the dunes"),
    "meadow": ("in a meadow", "on the grass", "in a green meadow", "in a garden", "on a green field", "in the grass"),
    "hills": ("on a hill", "in the hills", "on the hills", "on a green hill", "in a valley", "among the hills"),
    "forest": ("in the forest", "in a forest", "in the woods", "among the trees", "by a forest"),
    "mountains": (
        "in the mountains",
        "near the mountains",
        "by a mountain",
        "in front of a snowy mountain",
        "in front of mountains",
        "under snowy mountains",
    ),
    "snow": ("in the snow", "in the snow", "on a snowy field", "in a snowy landscape", "in winter"),
    "field": ("in a field", "in a wheat field", "in a golden field", "on a yellow field"),
    "island": ("on an island", "on a tropical island"),
    "city": ("in the city", "in a city"),
}
AFLOAT = {
    "sea": (
        "on the sea",
        "on the sea",
        "at sea",
        "on the ocean",
        "in the ocean",
        "on the water",
        "sailing on the sea",
        "in the sea",
    ),
    "lake": ("on a lake", "on a lake", "on the lake", "in a lake", "sailing on a lake", "on a calm lake"),
    "beach": ("at the beach", "by the beach", "near a beach", "off the beach"),
}
THING_NOUNS = {
    "house": ("house", "house", "house", "house", "cottage", "home"),
    "cabin": ("cabin", "log cabin", "wooden cabin", "hut", "wooden house"),
    "castle": ("castle", "castle", "palace", "fortress"),
    "lighthouse": ("lighthouse",),
    "boat": ("boat", "boat", "boat", "sailboat", "ship", "sailing boat"),
    "tree": ("tree", "tree", "tree", "oak tree", "oak"),
    "pine": ("pine tree", "pine", "fir tree", "christmas tree"),
    "palm": ("palm tree", "palm tree", "palm"),
    "cactus": ("cactus", "cactus", "green cactus"),
    "tent": ("tent", "tent", "camping tent"),
    "balloon": ("hot air balloon", "hot air balloon", "balloon"),
    "windmill": ("windmill", "windmill", "mill"),
    "birds": ("birds", "a flock of birds", "flying birds", "seagulls", "some birds"),
    "flowers": ("flowers", "wildflowers", "many flowers", "tulips"),
}
# Where a thing is when its caption does not say.
USUAL_LANDS = {
    "house": ("meadow", "hills"),
    "cabin": ("forest", "snow"),
    "castle": ("hills", "meadow"),
    "lighthouse": ("sea",),
    "boat": ("sea", "lake"),
    "tree": ("meadow", "hills"),
    "pine": ("snow", "hills"),
    "palm": ("beach",),
    "cactus": ("desert",),
    "tent": ("meadow", "hills", "forest"),
    "balloon": ("hills", "meadow"),
    "windmill": ("meadow", "field"),
    "birds": ("sea", "hills"),
    "flowers": ("meadow",),
}


def caption(scene: ShapeScene | Landscape, rng: random.Random) -> str:
    """One of the many ways to ask for the scene, lower case, at times with words that add nothing."""
    text = landscape(scene, rng) if isinstance(scene, Landscape) else shapes.caption(scene, rng)
    if rng.random() < 0.12:
        text = f"{rng.choice(OPENINGS)} {text}"
    if rng.random() < 0.1:
        text += rng.choice(ENDINGS)
    if rng.random() < 0.03:
        words = text.split()
        words.insert(
            rng.randint(0, len(words)), "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8)))
        )
        text = " ".join(words)
    return text


def thing_phrase(scene: Landscape, rng: random.Random) -> str:
    """The thing with its colour and article: "a red boat", "the old castle", "yellow flowers"."""
    words = [rng.choice(THING_NOUNS[scene.thing])]
    if scene.colour and words[0] != "green cactus":
        words.insert(0, shapes.colour_phrase(scene.colour, "", rng))
    if scene.thing in ("birds", "flowers"):
        return " ".join(words)
    if rng.random() < 0.1:
        words.insert(0, rng.choice(ADJECTIVES))
    text = " ".join(words)
    chance = rng.random()
    return article(text) if chance < 0.8 else f"the {text}" if chance < 0.85 else text


def landscape(scene: Landscape, rng: random.Random) -> str:
    """A phrase for a landscape; the usual land and a plain day often go unsaid."""
    times = TIMES[scene.sky]
    if scene.orb and rng.random() < 0.5:
        times = ORB_TIMES.get(scene.orb) or ORB_TIMES[scene.orb, scene.sky]
    time = rng.choice(times)
    if scene.sky == "day" and rng.random() < 0.7:
        time = ""
    sky = rng.choice(SKY_NOUNS[scene.sky])
    if scene.orb == "moon" and rng.random() < 0.4:
        sky = rng.choice(("the moon", "a full moon", "a moon", "moonlight"))
    land = rng.choice(LAND_NOUNS[scene.land])
    if not scene.thing:
        forms = [f"{land} {time}", f"{land} {time}", f"{land} {time}"]
        if scene.sky != "day":
            forms += [f"{sky} over {land}", f"{land} with {sky}", f"{land}, {sky}"]
            if scene.land in ("sea", "hills", "mountains", "meadow") and rng.random() < 0.35:
                forms = [sky]
        return rng.choice(forms).strip()
    thing = thing_phrase(scene, rng)
    if scene.thing == "boat":
        place = rng.choice(AFLOAT[scene.land])
    elif scene.thing in ("balloon", "birds"):
        place = rng.choice(("over", "over", "above", "flying over", "in the sky over")) + " " + land
    else:
        place = rng.choice(LAND_PLACES[scene.land])
    if scene.land in USUAL_LANDS[scene.thing] and rng.random() < 0.4:
        return f"{thing} {time}".strip()
    forms = [f"{thing} {place} {time}"] * 5 + [f"{land} with {thing} {time}"]
    if scene.sky != "day":
        forms += [
            f"{thing} {place}, {sky}",
            f"{thing} {place} with {sky}",
            f"{thing} and {sky} {place}",
            f"{time} {thing} {place}",
        ]
    return rng.choice(forms).strip()
