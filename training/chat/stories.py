"""Short stories and two-line poems about whatever the user names; the named thing is copied into fixed but freely combined plots."""

# ruff: noqa: E501 (patterns and word lists read best on one line)

import random
from dataclasses import dataclass

from . import words
from .phrasing import Typed, say, user

ASK_STORY = [
    "[I need|we need|do you have|have you got|any chance of|is there|let's have|please do|I feel like|I'm in the mood for|could I have|can we have|make me] a [short |nice |little |] [story|tale|bedtime story|fairy tale] [about|on|with|for|around|involving|that is about|whose hero is] {x}[?|.|]",
    "[tell me|write|invent|create|make up] [something about {x}, as a story|a story and let {x} be in it|a story, it should be about {x}|what happened to {x} once upon a time|the story of {x}|a story where {x} is the main character|an adventure of {x}|the tale of {x}|a story with {x} in it][.|]",
    "[a story|story|tale|short story|bedtime story][:|,| -] {x}",
    "{x}[: | - |, ][a story|story|tell me a story][.| please|]",
    "[tell me|tell|write|write me|give me|can you tell me|could you tell me|make up|invent|please tell me|create|would you write|can you write|I'd like to hear|I want to hear|I want|let me hear|I'd like|how about|share] a [short |little |quick |nice |funny |bedtime |fairy |tiny |good |] [story|tale|story|short story] [about|of|about|with|featuring] {x}[.|]",
    "a [short |little |] [story|tale] about {x}[.|, please.]",
    "story about {x}",
    "[can you|could you|will you|would you] [make up|write|tell|invent] [something like |] a [short |] story [about|in which there is|starring|where the hero is] {x}?",
    "[my daughter|my son|my kid] wants a [bedtime |] story about {x}[.|]",
    "[tell me|do you know] [a|any] [story|stories|tale] about {x}?",
    "once upon a time there was {x}[. Go on.|. Continue.|...]",
]
ASK_STORY_PLAIN = [
    "[tell me|tell|write|write me|give me|can you tell me|I want|I'd like|please tell me] a [short |bedtime |little |funny |] [story|tale][.|?|]",
    "[story|a story] please",
    "do you know [any|a] [stories|story]?",
    "story time!",
]
ASK_POEM = [
    "[I need|we need|do you have|have you got|let's have|please do|I feel like|could I have|can I have|make me|is there|any chance of] a [short |nice |little |two-line |] [poem|rhyme|verse|couplet] [about|on|for|with|that is about|dedicated to] {x}[?|.|]",
    "[tell me|write|invent|create|make up|say] [something about {x}, as a poem|something poetic about {x}|some verses about {x}|something that rhymes about {x}|a poem, it should be about {x}|a few rhymes on {x}|a poem in honour of {x}|a poem with {x} in it|rhymes about {x}|lines of poetry for {x}][.|]",
    "[a poem|poem|verse|rhyme|short poem|two lines][:|,| -] {x}",
    "{x}[: | - |, ][a poem|poem|write a poem][.| please|]",
    "[write|write me|give me|can you write|could you write|make|make up|compose|please write|tell me|create|recite|I'd like|I want|would you write|let me have] a [short |two-line |little |2 line |tiny |nice |rhyming |] [poem|poem|verse|rhyme|couplet] [about|on|for|about] {x}[.|]",
    "a [short |two-line |] [poem|rhyme|verse] about {x}[.|, please.]",
    "poem about {x}",
    "[write|give me|compose|I need|can you write] [two|2] [lines|rhyming lines|lines of poetry|lines of verse] [about|on] {x}[.|]",
    "[can you|could you|will you] [rhyme about|write poetry about|make a rhyme about|be poetic about] {x}?",
    "[a couplet|poetry|some poetry|two-liner|a two-liner] [on|about] {x}[.|]",
    "[turn {x} into a poem|put {x} into two lines of verse|describe {x} in a poem|describe {x} in two lines of verse][.|]",
]
ASK_POEM_PLAIN = [
    "[write|write me|give me|can you write|I want|I'd like|tell me|recite] a [short |little |nice |] [poem|rhyme|verse][.|?|]",
    "[poem|a poem] please",
    "do you know [any|a] [poems|poem]?",
]
AGAIN = [
    "[another one|another|one more|again|do another|do it again|can I have another one|tell me another|give me another|one more please|next one|more|once more|a different one|try again]",
    "[another one|one more|again] [please|about {x}]",
]

# Each plot: what happens to {the}, in two to four sentences that follow "Once upon a time {x} lived in ...".
PLOTS = [
    (
        "One day, {the} found [a shiny key|a golden key|a small key] under a stone.",
        "It opened a door to a garden that nobody had seen before.",
        "From then on, {the} went there every evening and was never sad again.",
    ),
    (
        "Every night, {the} looked at the moon and wished to touch it.",
        "One night, the moon shone on the lake, and {the} touched it there.",
        "After that, {the} slept with a smile.",
    ),
    (
        "One morning, {the} heard someone cry behind a tree.",
        "It was a [little bird|small mouse|young hedgehog] that had lost its way.",
        "Together they walked home, and from that day they were best friends.",
    ),
    (
        "One winter, a great storm came, and everyone was afraid.",
        "Only {the} went out with a lamp and led the lost travellers home.",
        "The next day, the whole village said thank you to {the}.",
    ),
    (
        "All day long, {the} wanted to learn how to sing.",
        "At first it sounded terrible, but {the} tried again every morning.",
        "In the end, even the birds came to listen.",
    ),
    (
        "One day, {the} found an old map in a bottle.",
        "It led over hills and through rivers to a big chest.",
        "There was no gold in it, only a letter that said: the journey was the treasure.",
    ),
    (
        "Nobody dared to cross the dark bridge, but {the} was curious.",
        "On the other side, {the} met a lonely giant who only wanted to play.",
        "They played until the sun went down and promised to meet again.",
    ),
    (
        "One summer, there was no rain, and the flowers began to fade.",
        "Each day, {the} carried water from the far river.",
        "Soon the flowers bloomed again, and everyone was thankful to {the}.",
    ),
    (
        "One evening, {the} saw a star fall from the sky.",
        "The star was cold and afraid, so {the} kept it warm all night.",
        "In the morning it flew back, and now it shines for {the} every night.",
    ),
    (
        "Everyone said that {the} was too small for big adventures.",
        "But when the river rose, {the} was the first to sound the bell.",
        "After that, nobody ever said it again.",
    ),
]
# Openings of stories; {x} as the user said it, {the} once it is known.
OPENING = ["once upon a time, {x} lived in {place}.", "long ago, {x} lived in {place}.", "in {place}, there lived {x}."]
POEMS = [
    ("When I think of {x}, my heart takes flight,", "it fills my dreams with golden light."),
    ("I sing of {x} from dusk till dawn,", "and miss it when the night is gone."),
    ("Oh {x}, you make my day so bright,", "you are my joy from morn till night."),
    ("I dream of {x} when the day is done,", "as warm and bright as the morning sun."),
    ("There's nothing like {x} beneath the sky,", "it makes me smile and wonder why."),
    ("A song for {x}, so soft and clear,", "a gentle tune for all to hear."),
    ("The world with {x} is a lovely place,", "it puts a smile on every face."),
    ("Come sing with me of {x} today,", "and all your sorrows fly away."),
]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A thing to write about: as asked for ("a fox", "Grace", "my cat Miso"), as introduced, and as called afterwards."""

    asked: str
    introduced: str
    called: str


def story_subject(rng: random.Random) -> Subject:
    """An animal, a person, a name, a thing; plain, with an adjective, or with a name of its own."""
    pick = rng.random()
    if pick < 0.34:
        name = words.name(rng)
        return Subject(asked=name, introduced=name, called=name)
    if pick < 0.62:
        noun = words.word_or_made_up(rng, words.ANIMALS, 0.2)
    elif pick < 0.82:
        noun = words.word_or_made_up(rng, words.PEOPLE, 0.15)
    else:
        noun = rng.choice([rng.choice(words.THINGS), words.made_up(rng)])
    if pick > 0.95:
        noun = rng.choice(words.ANIMALS + words.PETS)
        name = words.pet_name(rng)
        if rng.random() < 0.4:
            return Subject(asked=f"my {noun} {name}", introduced=f"your {noun} {name}", called=name)
        joint = rng.choice([" called ", " named ", " called "])
        return Subject(
            asked=words.with_article(noun) + joint + name,
            introduced=words.with_article(noun) + joint + name,
            called=name,
        )
    full = f"{words.word_or_made_up(rng, words.ADJECTIVES, 0.1)} {noun}" if rng.random() < 0.3 else noun
    if rng.random() < 0.1:
        asked = f"the {full}"
        return Subject(asked=asked, introduced=asked, called=asked)
    if rng.random() < 0.1 and noun[-1] not in "sxyfeh":
        return Subject(asked=f"{full}s", introduced=f"some {full}s", called=f"the {noun}s")
    phrase = words.with_article(full)
    return Subject(asked=phrase, introduced=phrase, called=f"the {noun}")


def poem_subject(rng: random.Random) -> Subject:
    """A thing, an animal or a name, in one of the ways in which people put it."""
    pick = rng.random()
    noun = (
        words.word_or_made_up(rng, words.THINGS, 0.35)
        if pick < 0.75
        else words.word_or_made_up(rng, words.ANIMALS, 0.2)
    )
    if pick > 0.9:
        noun = words.name(rng)
        return Subject(asked=noun, introduced=noun, called=noun)
    if rng.random() < 0.12:
        noun = f"{rng.choice(words.ADJECTIVES)} {noun}"
    if rng.random() < 0.08:
        return Subject(asked=f"my {noun}", introduced=f"your {noun}", called=noun)
    phrase = rng.choice([noun, f"the {noun}", words.with_article(noun), noun if noun.endswith("s") else f"{noun}s"])
    return Subject(asked=phrase, introduced=phrase, called=phrase)


def tell_story(rng: random.Random, subject: Subject) -> str:
    plot = rng.choice(PLOTS)
    opening = say(rng, OPENING, {"x": subject.introduced, "place": rng.choice(words.PLACES)})
    return " ".join([opening, *(say(rng, sentence, {"the": subject.called}) for sentence in plot)])


def write_poem(rng: random.Random, subject: Subject) -> str:
    return "\n".join(say(rng, line, {"x": subject.introduced}) for line in rng.choice(POEMS))


def _as_typed(subject: Subject, typed: Typed) -> Subject:
    """The subject with the capitals that the user typed."""
    if typed.values["x"] != subject.asked:
        change = str.lower if typed.values["x"] == subject.asked.lower() else str.upper
        return Subject(asked=typed.values["x"], introduced=change(subject.introduced), called=change(subject.called))
    return subject


def creative_turn(rng: random.Random, kind: str, subject: Subject | None = None) -> tuple[Typed, str, Subject]:
    """A request for a "story" or a "poem" and what is written; without a subject, half of the time the user names none."""
    ask, plain, choose, write = (
        (ASK_STORY, ASK_STORY_PLAIN, story_subject, tell_story)
        if kind == "story"
        else (ASK_POEM, ASK_POEM_PLAIN, poem_subject, write_poem)
    )
    if subject is None and rng.random() < 0.06:
        noun = rng.choice(["cat", "fox", "robot"]) if kind == "story" else rng.choice(["moon", "sea", "rain"])
        subject = Subject(asked="", introduced=f"a {noun}" if kind == "story" else f"the {noun}", called=f"the {noun}")
        return user(rng, plain), write(rng, subject), subject
    subject = subject or choose(rng)
    typed = user(rng, ask, {"x": subject.asked})
    subject = _as_typed(subject, typed)
    return typed, write(rng, subject), subject


def again_turn(rng: random.Random, kind: str, subject: Subject, before: str) -> tuple[Typed, str, Subject]:
    """Another story or poem than the one `before`: on the same subject, or on a new one that the user names."""
    if rng.random() < 0.5:
        new = story_subject(rng) if kind == "story" else poem_subject(rng)
        patterns = [
            "[and|now|and now|what about|how about|now one|another one|and one|same|the same|do one|one] [about|with|for] {x}[ please|?|.|]",
            "[and|what about|how about] {x}?",
        ]
        typed = user(rng, patterns, {"x": new.asked})
        subject = _as_typed(new, typed)
    else:
        typed = user(rng, AGAIN[0])
    write = tell_story if kind == "story" else write_poem
    text = write(rng, subject)
    while text[-30:] == before[-30:] or text[:12] == before[:12]:
        text = write(rng, subject)
    return typed, text, subject
