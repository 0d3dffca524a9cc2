"""Words that fill the slots: lists written by hand, and a generator of made-up words.

The made-up words force the models to copy a name instead of recalling it.
"""

# ruff: noqa: E501, SIM905 (patterns and word lists read best on one line)

import random
from dataclasses import dataclass

NAMES = """Alice Bob Carol David Emma Frank George Hannah Ivan Julia Kevin Laura Mike Nora Oscar Paul Quinn Rachel Sam Tina Uma Victor Wendy
Xavier Yara Zoe Anna Ben Clara Daniel Eva Felix Greta Henry Isabel Jack Karen Leo Maria Nathan Olivia Peter Rosa Simon Thomas Ursula Vera
William Yusuf Zara Ahmed Fatima Omar Leila Hassan Aisha Chen Wei Li Mei Hiroshi Yuki Sakura Kenji Haruto Priya Raj Anil Deepa Sanjay Lakshmi
Arjun Carlos Sofia Diego Lucia Miguel Elena Pablo Carmen Mateo Pierre Marie Luc Camille Antoine Claire Jean Louis Hans Klaus Heidi Jürgen
Lars Ingrid Sven Astrid Bjorn Freya Giovanni Marco Giulia Luca Paolo Chiara Dmitri Olga Natasha Sergei Boris Irina Kofi Ama Kwame Zola Thabo
Amara Chidi Ngozi John James Robert Michael Mary Linda Susan Lisa Nancy Betty Helen Sandra Ruth Sharon Kim Tom Jim Joe Dan Max Mia Amy Joy May
Eve Ian Guy Ron Ned Ted Roy Ray Liam Noah Ethan Lucas Mason Logan Aiden Elijah Amelia Harper Evelyn Ella Lily Chloe Penelope Layla Riley Nina
Ruby Ivy Hazel Violet Stella Lucy Alex Chris Jordan Taylor Morgan Casey Jamie Robin Sasha Andrea Kelly Terry Pat Lee Dana Marta Piotr Agnes
Zofia Tomasz Ewa Mehmet Elif Emre Ayse Minh Linh Thuy Somchai Nari Jisoo Minjun Eun Tariq Samira Nadia Karim Yasmin Dalia Ravi Meera Kiran
Nikhil Asha Grete Otto Emil Ida Nils Aino Mikko Eero Siobhan Aoife Declan Fiona Gwen Rhys Bronwen Callum Isla Hamish Cyrus Darius Roxana
Wanjiru Otieno Abebe Selam Tendai Rudo Moana Kai Leilani Tane Aroha Inti Killa Itzel Camila Beatriz Joao Thiago Rafael Bruna""".split()
COLOURS = [
    *"""red blue green yellow orange purple pink black white brown grey turquoise teal violet indigo gold silver crimson beige lavender
navy magenta cyan maroon olive scarlet peach mint coral ivory lilac amber emerald""".split(),
    "sky blue",
    "dark green",
    "light blue",
    "navy blue",
]
PETS = """dog cat rabbit hamster parrot goldfish turtle pony horse snake lizard mouse rat canary ferret gecko budgie chicken duck goat pig
spider tortoise kitten puppy frog guinea-pig iguana hedgehog cockatiel llama donkey sheep cow axolotl chinchilla""".split()
PET_NAMES = """Rex Bella Max Luna Charlie Lucy Cooper Daisy Milo Bailey Rocky Sadie Buddy Molly Toby Coco Bear Ruby Duke Rosie Simba Nala Oreo
Whiskers Mittens Shadow Tiger Smokey Misty Pepper Ginger Felix Socks Patches Snowball Biscuit Cookie Peanut Pumpkin Waffles Noodle Mochi Kiwi
Mango Ziggy Gizmo Pixel Bandit Scout Ace Thor Loki Zeus Hera Apollo Juno Olive Hazel Nugget Pickle Button Pebbles Fluffy Spot Fido""".split()
CITIES = """London Paris Berlin Madrid Rome Vienna Prague Warsaw Dublin Lisbon Athens Oslo Stockholm Helsinki Copenhagen Amsterdam Brussels
Zurich Geneva Munich Hamburg Milan Naples Barcelona Seville Porto Budapest Bucharest Sofia Belgrade Zagreb Kyiv Moscow Istanbul Ankara Cairo
Lagos Nairobi Accra Casablanca Tunis Dakar Johannesburg Durban Delhi Mumbai Bangalore Chennai Karachi Lahore Dhaka Kathmandu Bangkok Hanoi
Jakarta Manila Singapore Tokyo Osaka Kyoto Seoul Busan Beijing Shanghai Sydney Melbourne Perth Auckland Wellington Toronto Montreal Vancouver
Boston Chicago Seattle Denver Austin Dallas Houston Miami Atlanta Phoenix Portland Detroit Philadelphia Lima Bogota Quito Santiago Havana
Reykjavik Edinburgh Glasgow Cardiff Belfast Leeds Bristol Oxford Cambridge Nantes Lyon Toulouse Germany France Spain Italy India Japan Brazil
Canada Mexico Kenya Norway Poland Peru Egypt Turkey Greece Portugal Ireland Scotland""".split()
CITIES += [
    "New York",
    "San Francisco",
    "Los Angeles",
    "Cape Town",
    "Buenos Aires",
    "Hong Kong",
    "Tel Aviv",
    "Mexico City",
    "Rio de Janeiro",
    "Salt Lake City",
]
FOODS = """pizza pasta sushi rice soup salad curry tacos lasagna ramen burgers pancakes chocolate cheese bread apples mangoes strawberries
dumplings noodles falafel hummus paella steak fish chips ice-cream cake cookies waffles kebab pho risotto ravioli couscous potatoes""".split()
ANIMALS = """fox wolf bear lion tiger elephant giraffe zebra monkey kangaroo koala panda penguin owl eagle sparrow swan duck goose hen rooster
rabbit hare squirrel mouse rat hedgehog badger otter beaver deer moose horse donkey cow pig sheep goat camel llama cat dog puppy kitten frog toad
turtle tortoise snake lizard crocodile dragon unicorn whale dolphin shark octopus crab lobster seal walrus bee ant butterfly spider snail worm
ladybird dragonfly parrot crow raven pigeon bat mole raccoon skunk sloth hippo rhino cheetah leopard jaguar goldfish salmon phoenix""".split()
PEOPLE = """boy girl man woman king queen prince princess knight pirate wizard witch baker farmer fisherman sailor teacher doctor nurse painter
gardener shepherd robot ghost giant dwarf fairy astronaut scientist inventor musician dancer clown detective librarian postman cook carpenter
grandmother grandfather child student soldier poet programmer engineer vampire monster mermaid elf ninja cowboy explorer pilot thief""".split()
ADJECTIVES = """little brave lonely tiny old young clever lazy happy sad curious shy kind friendly hungry sleepy red blue white black golden
silver magic invisible talking flying lost funny grumpy wise forgetful gentle proud quiet noisy strange""".split()
THINGS = """moon sun sea river mountain forest tree rose flower garden rain snow wind storm cloud rainbow star sky night morning evening summer
winter spring autumn beach island desert lake ocean bridge city village house window door road train boat ship plane bicycle car lamp candle
fire book letter song violin piano guitar drum clock mirror key ring crown sword stone shell feather leaf apple bread coffee tea chocolate
cake pizza soup cheese honey salt chair table bed blanket pillow shoe hat coat sock umbrella pencil computer keyboard robot telephone camera
castle tower kite balloon doll ball dream shadow silence time friendship love hope home music dancing winter sunshine thunder dew sand wave
spoon potato tomato onion banana lemon cherry orange teapot bicycle lighthouse harbour market kitchen library school football chess""".split()
PLACES = ["a quiet forest", "a small village", "a house by the sea", "a tall tower", "a green valley", "an old windmill", "a busy town", "a cave in the hills", "a cottage near a lake", "a castle on a hill", "a garden full of roses", "a hut on a tiny island", "a hut on a snowy mountain", "an old library", "a wooden boat on a river"]  # fmt: skip

STARTS = (
    "b c d f g h j k l m n p q r s t v w y z br ch cl cr dr fl fr gr kl kr pl pr qu sh sk sl sn st th tr tw vl wr zh x".split()
    + [""] * 6
)
VOWELS = "a e i o u a e i o u ai au ea ee ei ia ie io oa oo ou y ua".split()
ENDS = ["", "", "", "", "", *"n r l s t m k x th sh nd rk lt st ck ng d b p g v z ss ff rn".split()]
SUFFIXES = [
    "",
    "",
    "",
    "",
    "",
    "a",
    "o",
    "i",
    "us",
    "ia",
    "en",
    "er",
    "el",
    "ix",
    "ara",
    "ette",
    "son",
    "ton",
    "ville",
    "burg",
    "y",
    "ie",
    "ina",
    "or",
    "eth",
]


KNOWN = (NAMES, COLOURS, PETS, PET_NAMES, CITIES, FOODS, ANIMALS, PEOPLE, ADJECTIVES, THINGS, STARTS[:-6])


@dataclass(frozen=True, kw_only=True)
class Habits:
    """What differs between the phases of a training. All are shares from 0 to 1.

    `spliced`: made-up words that are spliced from parts of known ones. `corrected`: told facts that correct an earlier one.
    `bare`: sums and differences asked without words. `more_small_talk`: whether the longer list of it is used.
    `by_digits`: whether tens and ones are shown one by one in arithmetic, which is asked in more ways then.
    `worded`: sums and differences told as little stories or in loose words.
    `roomy`: whether stories of sums have words to spare.
    `broad`: how often a turn is asked in the ways that came last and are the most varied.
    `reminded`: whether facts are told and asked about in more ways. `asks`: how much more often they are asked about.
    """

    spliced: float = 0.0
    corrected: float = 0.15
    bare: float = 0.0
    more_small_talk: bool = False
    by_digits: bool = False
    worded: float = 0.0
    reminded: bool = False
    asks: float = 1.0
    roomy: bool = False
    broad: float = 0.0


class Source(random.Random):
    """A random source that carries the habits of the current phase."""

    habits = Habits()


def habits(rng: random.Random) -> Habits:
    return rng.habits if isinstance(rng, Source) else Habits()


def broadly(rng: random.Random) -> bool:
    """Whether this turn is asked in one of the ways that came last. Draws nothing in a phase without them."""
    share = habits(rng).broad
    return share > 0 and rng.random() < share


def _spliced(rng: random.Random) -> str:
    """The start of one known word and the end of another: "moonvember", "Wolfatoes". Every piece of the vocabulary occurs."""
    first, second = (rng.choice(rng.choice(KNOWN)).lower() for _ in "ab")
    return first[: rng.randint(1, len(first))] + second[rng.randint(0, len(second) - 1) :]


RARE_STARTS = "zb zd gw dm dz mb mv nd ng ny ts tz hr hv vr kh rh ll lj ph chr sch str spr phr thr schm kn gn pf ps sv szcz cz sz bh dh gh jh mn pn yv x aa ae oe ue ye yo yu qa".split()
RARE_MIDDLES = "zz tt ll ff nn mm pp bb gg dd ss rr ck ng nk mb nd lb rth lth nz ns sk sp st tz tch dg vr br gr ld lf rq rv rz zg zn wn xt bs gn gm".split()
RARE_ENDS = "ric rik ald old und ard bert mund wig helm slaw mir vin wyn ette elle ique ius ios akis oglu dottir sson zyk czyk nko shvili ingo anda endra ayo ola ike adze wen wyd mara bara vara linda fried heim mouth quist ong ing uk aq ez iz oz yx".split()


def _rare(rng: random.Random) -> str:
    """A word with letters in orders that are rare in English: "zbovvric", "chrallond", "mbuggayo"."""
    word = rng.choice(RARE_STARTS if rng.random() < 0.6 else STARTS) + rng.choice(VOWELS)
    for _ in range(rng.choices([0, 1, 2], [0.3, 0.5, 0.2])[0]):
        word += rng.choice(RARE_MIDDLES if rng.random() < 0.6 else STARTS[:-6]) + rng.choice(VOWELS)
    return word + rng.choice(RARE_ENDS if rng.random() < 0.6 else ENDS)


def made_up(rng: random.Random) -> str:
    """A pronounceable word of one to three syllables, without a capital: "brimo", "thaulsen", "quia"."""
    if broadly(rng) and rng.random() < 0.5:
        return _rare(rng)
    if habits(rng).spliced and rng.random() < habits(rng).spliced:
        word = _spliced(rng)
        return word if 2 < len(word) < 15 and word.isalpha() else made_up(rng)
    count = rng.choices([1, 2, 3], [0.25, 0.5, 0.25])[0]
    word = "".join(
        rng.choice(STARTS) + rng.choice(VOWELS) + (rng.choice(ENDS) if rng.random() < 0.5 else "") for _ in range(count)
    )
    word += rng.choice(ENDS) if count == 1 else rng.choice(SUFFIXES)
    if rng.random() < 0.08:
        word = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 8)))
    return word if 2 < len(word) < 13 else made_up(rng)


def name(rng: random.Random) -> str:
    """A first name, known or made up; now and then with a family name, a hyphen or an unusual capital."""
    first = rng.choice(NAMES) if rng.random() < 0.4 else made_up(rng).capitalize()
    kind = rng.random()
    if kind < 0.05:
        return f"{first} {made_up(rng).capitalize()}"
    if kind < 0.065:
        return f"{first}-{rng.choice(NAMES)}"
    return first


def pet_name(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(PET_NAMES)
    if kind < 0.42:
        return (
            rng.choice(["Mr", "Mrs", "Lady", "Captain", "Sir", "Miss"])
            + " "
            + rng.choice([*PET_NAMES, made_up(rng).capitalize()])
        )
    return rng.choice(
        [rng.choice(NAMES), rng.choice(THINGS).capitalize(), made_up(rng).capitalize(), made_up(rng).capitalize()]
    )


def city(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(CITIES)
    return made_up(rng).capitalize() + (f" {made_up(rng).capitalize()}" if kind > 0.93 else "")


def word_or_made_up(rng: random.Random, words: list[str], share: float = 0.25) -> str:
    """One of the words, or, for this share, another noun or a made-up word."""
    if rng.random() > share:
        return rng.choice(words)
    return rng.choice([made_up(rng), made_up(rng), rng.choice(THINGS), rng.choice(ANIMALS)])


def with_article(noun: str) -> str:
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun
