"""What users tell about themselves: the kinds of facts, with how each is told, taken, asked about and answered."""

# ruff: noqa: E501, SIM905 (patterns and word lists read best on one line)

import random
from dataclasses import dataclass

from . import words

OPEN = ["favourite colour", "favourite food", "favourite animal", "favourite season", "favourite hobby", "favourite book", "favourite city", "favourite drink", "favourite sport", "favourite number", "favourite fruit", "favourite flower", "favourite game", "favourite day", "favourite song", "favourite film", "favourite country"]  # fmt: skip
VALUES = {
    "season": ["spring", "summer", "autumn", "winter"],
    "hobby": [
        "chess",
        "painting",
        "reading",
        "swimming",
        "gardening",
        "knitting",
        "hiking",
        "cooking",
        "fishing",
        "singing",
        "photography",
    ],
    "sport": [
        "tennis",
        "football",
        "basketball",
        "cricket",
        "rugby",
        "golf",
        "hockey",
        "swimming",
        "rowing",
        "judo",
        "skiing",
        "karate",
    ],
    "drink": ["tea", "coffee", "water", "milk", "lemonade", "orange juice", "hot chocolate", "cola", "wine", "beer"],
    "fruit": ["apples", "bananas", "mango", "pears", "cherries", "grapes", "oranges", "kiwi", "plums", "melon"],
    "flower": ["roses", "tulips", "lilies", "daisies", "orchids", "sunflowers", "violets"],
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "game": ["chess", "poker", "checkers", "hide and seek", "dominoes", "Tetris", "bridge"],
    "colour": words.COLOURS,
    "food": words.FOODS,
    "animal": words.ANIMALS,
}
RELATIVES = ["brother", "sister", "mother", "father", "mum", "dad", "friend", "best friend", "wife", "husband", "son", "daughter", "boss", "neighbour", "teacher", "cousin", "uncle", "aunt", "girlfriend", "boyfriend", "grandma", "roommate"]  # fmt: skip
JOBS = "baker teacher nurse doctor engineer pilot farmer painter student programmer lawyer cook driver musician writer dentist plumber gardener waiter chemist".split()
FAMILY = "surname nickname password team school street car shoe-size birthday hero planet username".split()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of fact: how it is told (slots {k} and {v}), how the assistant takes it, asks and answers."""

    tell: tuple[str, ...]
    take: tuple[str, ...]
    ask: tuple[str, ...]
    answer: tuple[str, ...]
    unknown: str
    correct: tuple[str, ...]


NAME = Kind(
    tell=(
        "[my name is|my name's|I am|I'm|call me|you can call me|I'm called|people call me|this is|the name is|the name's|everyone calls me|please call me|my friends call me] {v}[.|!]",
        "[hi|hello|hey|good morning|good evening], [my name is|I'm|I am|this is|it's] {v}[.|!]",
        "[hi|hello|hey] [there|], {v} here[.|!]",
        "{v} here[.|!]",
        "I [want you to know that my name is|go by|go by the name of|introduce myself: I'm] {v}[.|]",
        "[nice to meet you|pleased to meet you], [my name is|I'm|I am] {v}[.|]",
        "[remember|please remember|don't forget|note] that [my name is|I'm|I am called] {v}[.|]",
    ),
    take=("[nice to meet you|hello|pleased to meet you|it's good to meet you], {v}!",),
    ask=(
        "[what is|what's|tell me|do you remember|do you know|can you tell me|say|what was|remember|can you recall|could you repeat|recall] my name[ again|]?",
        "who am I?",
        "[do you know|do you remember|can you tell me|tell me|remember] [who I am|what my name is|what I'm called|my first name]?",
        "what [did I say my name was|did I tell you my name was|am I called|do people call me|should you call me|is my first name]?",
        "what [name did I give you|name did I tell you|did I just say my name was|do my friends call me]?",
        "[how am I called|have you forgotten my name|did you forget my name|what do you call me]?",
    ),
    answer=("your name is {v}.", "your name is {v}.", "you are {v}."),
    unknown="[I don't know your name. You|You] haven't told me your name yet.",
    correct=(
        "[actually|sorry|no|wait|oops|correction], [my name is|I meant|I'm called|I'm|call me] {v}[.|, not {old}.]",
        "I changed my name to {v}[.|]",
        "my name is [really|actually|now] {v}[.|]",
    ),
)
CITY = Kind(
    tell=(
        "I [live in|come from|am from|live near|grew up in|was born in|moved to|am living in|am based in] {v}[.| now.|]",
        "I'm [from|living in|based in|originally from|currently in] {v}[.|]",
        "[my home is|my home town is|my city is|my hometown is|home for me is] {v}[.|]",
        "[we live|my family lives|I've lived for years|I have a flat|I have a house] in {v}[.|]",
        "[remember|please remember|note] that I [live in|am from] {v}[.|]",
    ),
    take=(
        "{v} sounds like a [nice|lovely|wonderful] place[.|!]",
        "[I see|thank you for telling me], you are from {v}.",
    ),
    ask=(
        "where [do I live|am I from|do I come from|is my home|am I living|am I based|did I say I live|did I say I'm from|was I from|did I grow up|is it that I live]?",
        "[what is|what's|tell me|do you remember|do you know|which is] my [city|home town|hometown|town|home city]?",
        "[which|what] [city|town|place|country] [do I live in|am I from|do I come from|did I say I live in|is my home]?",
        "[do you remember|do you know|can you tell me|tell me|remember] where [I live|I'm from|I am from|I come from|my home is]?",
    ),
    answer=("you live in {v}.", "you told me that you live in {v}."),
    unknown="[I don't know. You|You] haven't told me where you live.",
    correct=(
        "[actually|sorry|no|wait|oops], I [live in|am from|moved to] {v}[.|, not {old}.| now.]",
        "I [just|have|recently] moved to {v}[.|]",
    ),
)
JOB = Kind(
    tell=("[I'm|I am|I work as] {av}[.|]", "[my job is|my profession is] {v}[.|]", "I work as {av}[.|]"),
    take=("[working as|being] {av} must be interesting.",),
    ask=(
        "what [do I do for a living|is my job|is my profession|do I work as|do I do]?",
        "[do you remember|do you know|tell me] [my job|what I do|what my job is]?",
        "what's my [job|work|profession]?",
    ),
    answer=("you work as {av}.",),
    unknown="You haven't told me what your job is.",
    correct=("[actually|sorry|no|wait], [I'm|I work as] {av}[.|]",),
)
PET = Kind(
    tell=(
        "I [have|own|got|have got|keep|adopted|live with] [a pet {k}|{ak}|{ak}] [called|named|whose name is|with the name] {v}[.|]",
        "[my|our] {k} is [called|named] {v}[.|]",
        "[my|our] {k}'s name is {v}[.|]",
        "I have {ak}[. Its|, its| and its|. His|. Her| and his| and her] name is {v}[.|]",
        "the name of my {k} is {v}[.|]",
        "{v} is [my {k}|the name of my {k}|what I call my {k}][.|]",
        "[my pet is|I've got] {ak} [called|named] {v}[.|]",
        "[remember|note] that my {k} is called {v}[.|]",
    ),
    take=(
        "{v} is a [lovely|great|fine] name for {ak}[.|!]",
        "[how nice! Give {v} a hug from me.|that's nice! I hope that {v} is well.]",
    ),
    ask=(
        "[what is|what's|tell me|do you remember|do you know|what was|can you tell me|recall] my {k}'s name[ again|]?",
        "[what is|what's|tell me|do you remember|do you know|what was] the name of my {k}?",
        "[what is|how is] my {k} called?",
        "[what did I say my {k} is called|what do I call my {k}|what did I name my {k}|what name does my {k} have|who is my {k}|how do I call my {k}]?",
        "[do you remember|do you know|tell me] what my {k} is called?",
    ),
    answer=("your {k} is called {v}.", "your {k}'s name is {v}."),
    unknown="[I don't know. You|You] haven't told me the name of your {k}.",
    correct=(
        "[actually|sorry|no|wait|oops], my {k} is [called|named] {v}[.|, not {old}.]",
        "[actually|sorry|wait], the {k}'s name is {v}[.|]",
    ),
)
PET_GENERAL = (
    "[what is|what's|tell me|do you remember|do you know] my pet's name?",
    "[what is|what's|do you know|do you remember] the name of my pet?",
    "what is my pet called?",
)
PET_KIND = (
    "[what|which|what kind of|what sort of] [pet|animal] do I [have|own|keep]?",
    "[do you remember|do you know|tell me] what [pet|animal|kind of pet] I have?",
    "do I have [a pet|any pets|an animal]?",
    "what [is|'s] my pet?",
)
OWNED = Kind(
    tell=(
        "my {k} is {v}[.|]",
        "[remember|please remember|note|keep in mind|don't forget|you should know|I want you to know] that my {k} is {v}[.|]",
        "{v} is my {k}[.|]",
        "[for me,|I think|just so you know,|fun fact:] my {k} is {v}[.|]",
        "if [you ask me|anyone asks], my {k} is {v}[.|]",
    ),
    take=("[I'll remember|thank you, I'll keep in mind|good to know] that your {k} is {v}.",),
    ask=(
        "[what is|what's|tell me|do you remember|do you know|what was|can you tell me|recall|remind me:] my {k}[ again|]?",
        "[which|what] did I say my {k} [is|was]?",
        "what did I [tell you|say] [my {k} was|my {k} is|about my {k}]?",
        "[do you remember|do you know|tell me|can you tell me] what my {k} is?",
        "[have you forgotten|did you forget] my {k}?",
    ),
    answer=("your {k} is {v}.",),
    unknown="[I don't know. You|You] haven't told me your {k}.",
    correct=(
        "[actually|sorry|no|wait|oops], my {k} is {v}[.|, not {old}.| now.]",
        "I changed my mind[.|,] my {k} is {v}[.|]",
        "my {k} [is really|is now|has changed to] {v}[.|]",
    ),
)
LIKES = Kind(
    tell=(
        "I [really |] [like|love|enjoy|adore] {v}[.|!]",
        "I'm [a fan of|fond of|crazy about|into] {v}[.|]",
        "[you should know that|remember that|just so you know,] I [like|love] {v}[.|]",
    ),
    take=("[I'll remember|good to know] that you like {v}.",),
    ask=(
        "what do I [like|love|enjoy]?",
        "what [did I say I like|did I tell you I like|am I fond of|am I a fan of|do I say I love]?",
        "[do you remember|do you know|tell me] what I [like|love|enjoy]?",
    ),
    answer=("you like {v}.",),
    unknown="[I don't know. You|You] haven't told me what you like.",
    correct=("[actually|sorry|no|wait], I [like|love|prefer] {v}[.|]",),
)
AGE = Kind(
    tell=(
        "[I'm|I am] {v} [years old|years of age|years young][.|]",
        "my age is {v}[.|]",
        "I [turned|just turned|will be] {v}[.| years old.| this year.]",
    ),
    take=("[I'll remember|good to know] that you are {v} years old.",),
    ask=(
        "how old am I?",
        "[what is|what's|tell me|do you remember|do you know] my age?",
        "[do you remember|do you know|tell me] how old I am?",
    ),
    answer=("you are {v} years old.",),
    unknown="[I don't know. You|You] haven't told me your age.",
    correct=("[actually|sorry|no|wait], I'm {v} years old[.|]",),
)
LIKE_TELL = (
    "I [like|love|prefer] {v} [most|best|more than any other {noun}|above all other {noun}s][.|]",
    "I like the {noun} {v} [most|best][.|]",
    "the {noun} I [like most|love most|like best] is {v}[.|]",
    "{v} is the best {noun}[.|]",
    "{v} is the {noun} I like [best|most][.|]",
)
LIKE_ASK = (
    "[what|which] {noun} do I [like|love|prefer][ most| best|]?",
    "[what|which] {noun} did I say I [like|love|prefer]?",
    "[what|which] is the {noun} [that |]I [like|love] [most|best]?",
    "do you remember [what|which] {noun} I like?",
)
RELATIVE = Kind(
    tell=(
        "my {k}'s name is {v}[.|]",
        "my {k} is [called|named] {v}[.|]",
        "I have {ak} [called|named] {v}[.|]",
        "the name of my {k} is {v}[.|]",
        "{v} is my {k}[.|]",
    ),
    take=("[I'll remember|thank you, I'll keep in mind|good to know] that your {k} is called {v}.",),
    ask=(
        "[what is|what's|tell me|do you remember|do you know|what was] my {k}'s name?",
        "[what is|how is] my {k} called?",
        "[what is|what's|do you know] the name of my {k}?",
        "who is my {k}?",
    ),
    answer=("your {k} is called {v}.", "your {k}'s name is {v}."),
    unknown="[I don't know. You|You] haven't told me the name of your {k}.",
    correct=(
        "[actually|sorry|no|wait], my {k} is called {v}[.|]",
        "[actually|sorry|no|wait], my {k}'s name is {v}[.|]",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Fact:
    kind: Kind
    key: str
    value: str
    noun: str = ""


def new_fact(rng: random.Random) -> Fact:
    """A fact that a user might tell, of any kind."""
    pick = rng.random()
    if pick < 0.34:
        return Fact(kind=NAME, key="name", value=words.name(rng))
    if pick < 0.48:
        return Fact(kind=CITY, key="city", value=words.city(rng))
    if pick < 0.66:
        return Fact(kind=PET, key=words.word_or_made_up(rng, words.PETS, 0.1), value=words.pet_name(rng))
    if pick < 0.78:
        return Fact(
            kind=OWNED,
            key=rng.choice(["favourite colour", "favourite colour", "favorite color"]),
            value=words.word_or_made_up(rng, words.COLOURS, 0.2),
            noun="colour",
        )
    if pick < 0.89:
        key = rng.choice(OPEN) if rng.random() < 0.9 else f"favourite {words.made_up(rng)}"
        noun = key.split()[-1]
        value = rng.choice(VALUES[noun]) if noun in VALUES and rng.random() < 0.7 else words.made_up(rng)
        value = str(rng.randint(1, 99)) if noun == "number" else value
        return Fact(kind=OWNED, key=key, value=value if rng.random() < 0.8 else value.capitalize(), noun=noun)
    if pick < 0.93:
        return Fact(kind=OWNED, key=rng.choice(FAMILY), value=words.made_up(rng).capitalize())
    if pick < 0.955:
        liked = rng.choice([words.THINGS, words.FOODS, words.ANIMALS, VALUES["hobby"], VALUES["sport"]])
        return Fact(kind=LIKES, key="likes", value=words.word_or_made_up(rng, liked, 0.3))
    if pick < 0.98:
        return Fact(kind=RELATIVE, key=rng.choice(RELATIVES), value=words.name(rng))
    if pick < 0.99:
        return Fact(kind=AGE, key="age", value=str(rng.randint(5, 99)))
    return Fact(kind=JOB, key="job", value=rng.choice(JOBS))
