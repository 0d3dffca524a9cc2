"""Adding and subtracting whole numbers from 0 to 100: questions in many phrasings, answers that show one step of work.

The answer repeats the calculation in one form ("27 + 45 = 60 + 12 = 72") whatever the question looked like. Where a carry or a borrow is
needed, the step in the middle makes it plain, so that no digit depends on a calculation that has not been written down yet.
"""

# ruff: noqa: E501, SIM905 (patterns and word lists read best on one line)

import random

from .phrasing import Typed, say, user
from .words import habits

ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
ONES = ONES.split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()

BARE_ADD = ["{a}+{b}", "{a} + {b}", "{a} plus {b}[?|]", "{a} + {b} =", "what is {a} + {b}?", "add {a} and {b}"]
BARE_SUBTRACT = ["{a}-{b}", "{a} - {b}", "{a} minus {b}[?|]", "{a} - {b} =", "what is {a} - {b}?", "take {b} from {a}"]
ADD = [
    "[what is|what's|how much is|calculate|compute|work out|what does|tell me|do you know|can you calculate] {a} [+|plus|and|added to] {b}?",
    "{a} [+|plus] {b}",
    "{a} [+|plus] {b} [=|= ?|equals|equals what|makes|is]?",
    "{a}+{b}",
    "{a}+{b}[=|=?|?]",
    "what is {a}+{b}?",
    "what do you get [if you add|when you add|by adding] {a} [and|to|plus] {b}?",
    "[add|please add|can you add|could you add] {a} [and|to|plus] {b}[.|?|]",
    "[what is|what's|give me|find|tell me|calculate|] [the|] [sum|total] of {a} and {b}[?|]",
    "if I have {a} [apples|coins|books|eggs|pens|sweets] and [get|buy|find|receive] {b} more, how many do I have[ now| in total|]?",
    "what [number|] do {a} and {b} [make|add up to|sum to|come to]?",
    "how much do {a} and {b} make[ together|]?",
    "what is {b} more than {a}?",
    "what's {a} increased by {b}?",
    "what does {a} plus {b} [equal|make|come to|give]?",
    "[solve|evaluate|answer|math|maths|sum]: {a} + {b}",
]
SUBTRACT = [
    "[what is|what's|how much is|calculate|compute|work out|tell me|do you know|can you calculate] {a} [-|minus|less|take away] {b}?",
    "{a} [-|minus|take away] {b}",
    "{a} [-|minus] {b} [=|= ?|equals|equals what|makes|is]?",
    "{a}-{b}",
    "{a}-{b}[=|=?|?]",
    "what is {a}-{b}?",
    "what do you get [if you|when you] [subtract|take|take away] {b} from {a}?",
    "[subtract|take|take away|please subtract|can you subtract|could you take|deduct] {b} from {a}[.|?|]",
    "[what is|what's|give me|find|tell me|] [the|] difference between {a} and {b}[?|]",
    "if I have {a} [apples|coins|books|eggs|pens|sweets] and [lose|eat|sell|give away] {b}, how many [do I have left|are left|remain]?",
    "[what is|what's|what do you get when you have] {a} [decreased|reduced] by {b}?",
    "what is {b} less than {a}?",
    "how much is left if I take {b} from {a}?",
    "what does {a} minus {b} [equal|make|come to|give|leave]?",
    "[solve|evaluate|answer|math|maths]: {a} - {b}",
]
MORE_ADD = [
    "[what is|what's|tell me|give me|find|compute|I need|I want|what would be|show me|write down] the [result|answer|value|outcome|solution] [of|to|for|when adding|if you take] {a} [+|plus|and] {b}[?|.|]",
    "[what|how much|what number] [would|will|do|does|did|should] {a} [+|plus|and] {b} [be|make|give|equal|come to|result in|yield|add up to]?",
    "[I have|there are|she has|he owns|we had|Tom has] {a} [apples|books|birds|cars|euros|dollars][ and|,] [get|buy|find|then come|they add|add] {b} more[.|,] [how many is that|how many are there|what is the total|how many in all]?",
    "[put|count|join] {a} and {b} together[.|]",
    "[increase|raise] {a} by {b}[.|]",
    "{a} [added to|together with|and another|increased by|more than] {b}[?|]",
]
MORE_SUBTRACT = [
    "[what is|what's|tell me|give me|find|compute|I need|I want|what would be|show me|write down] the [result|answer|value|outcome|solution] [of|to|for] {a} [-|minus|less] {b}[?|.|]",
    "[what|how much|what number] [would|will|do|does|did|should] {a} [-|minus|less] {b} [be|make|give|equal|come to|result in|yield|leave]?",
    "[I have|there are|she has|he owns|we had|Tom has] {a} [apples|books|birds|cars|euros|dollars][ and|,] [lose|sell|give away|spend|eat|throw away] {b}[ of them|][.|,] [how many are left|how many remain|what is left|how much is left]?",
    "[take|cut|knock|remove|deduct|pull] {b} [off|from|out of|away from] {a}[.|]",
    "[decrease|lower|reduce] {a} by {b}[.|]",
    "[what is|what's|how much is|how many are] left [of|from] {a} [after|when|if] [I take away|taking away|you subtract|subtracting|losing|I give away|we remove] {b}?",
    "[what|how much] remains [of|from] {a} [if|when|after] [I take|you take|taking|subtracting] [away |] {b}?",
]
OTHER = [
    "[what is|what's|calculate|how much is|] {a} [+|-|plus|minus] {b} [+|-|plus|minus] {c}?",
    "[what is|what's|calculate|how much is|compute|] {a} [times|multiplied by|*|x|divided by|/|over|to the power of|modulo] {b}?",
    "[multiply|divide] {a} by {b}[.|]",
    "what is the square root of {a}?",
    "what is {a} percent of {b}?",
    "[what is|what's|calculate|how much is|] {big} [+|-|plus|minus|times] {b}?",
    "what is the [factorial|logarithm|square|cube|sine] of {a}?",
]
LIMIT = "[I'm sorry, I can only|I can only] add and subtract two numbers up to 100."


def is_held_out(a: int, b: int) -> bool:
    """One pair in ten is never asked in training (it may occur the other way round, inside the work of a difference)."""
    return (a * 37 + b * 61 + a * b) % 10 == 3


def sum_shown(a: int, b: int) -> str:
    """`a + b = ...` with the step that makes a carry plain."""
    ones = a % 10 + b % 10
    if ones < 10 or (a < 10 and b < 10):
        return f"{a} + {b} = {a + b}"
    return f"{a} + {b} = {a + b - ones} + {ones} = {a + b}"


def difference_shown(a: int, b: int) -> str:
    """`a - b = ...`: tens first when a borrow is needed, and the larger number first when the result is negative."""
    if a == 0 < b:
        return f"0 - {b} = -{b}"
    if a < b:
        steps = difference_shown(b, a).split(" = ")
        return " = ".join([f"{a} - {b}", *(f"-({step})" for step in steps[:-1]), f"-{steps[-1]}"])
    if a % 10 >= b % 10 or b < 10:
        return f"{a} - {b} = {a - b}"
    return f"{a} - {b} = {a - b + b % 10} - {b % 10} = {a - b}"


def sum_by_digits(a: int, b: int) -> str:
    """`a + b` with tens and ones added one after the other, then together."""
    if a < 10 and b < 10:
        return f"{a} + {b} = {a + b}"
    ones = a % 10 + b % 10
    tens = a + b - ones
    return (
        f"{a} + {b}: {a - a % 10} + {b - b % 10} = {tens}, {a % 10} + {b % 10} = {ones}, "
        f"so the answer is {tens} + {ones} = {a + b}"
    )


def difference_by_digits(a: int, b: int) -> str:
    """`a - b` with tens and ones subtracted one after the other; ten is borrowed first where the ones need it."""
    if a < b < 20:
        return f"{a} - {b} = -({b} - {a}) = {a - b}"
    if a < 20 and b < 20:
        return f"{a} - {b} = {a - b}"
    high, low = max(a, b), min(a, b)
    ones = high % 10 if high % 10 >= low % 10 else high % 10 + 10
    tens = high - ones - (low - low % 10)
    steps = f"{high - ones} - {low - low % 10} = {tens}, {ones} - {low % 10} = {ones - low % 10}"
    if a < b:
        return f"{a} - {b} = -({b} - {a}): {steps}, so the answer is -({tens} + {ones - low % 10}) = {a - b}"
    return f"{a} - {b}: {steps}, so the answer is {tens} + {ones - low % 10} = {a - b}"


def in_words(number: int) -> str:
    if number < 20:
        return ONES[number]
    if number == 100:
        return "one hundred"
    tens, ones = divmod(number, 10)
    return TENS[tens - 2] + (f"-{ONES[ones]}" if ones else "")


def operands(rng: random.Random) -> tuple[int, int]:
    """Two numbers from 0 to 100, small ones and round ones more often than chance, never a held-out pair."""
    while True:
        kind = rng.random()
        a, b = rng.randint(0, 100), rng.randint(0, 100)
        if kind < 0.2:
            a, b = rng.randint(0, 20), rng.randint(0, 20)
        elif kind < 0.3:
            b = rng.randint(0, 9)
        elif kind < 0.35:
            a = rng.choice([10, 20, 50, 100, 100])
        if not is_held_out(a, b):
            return a, b


def arithmetic_turn(rng: random.Random) -> tuple[Typed, str]:
    """A question and its answer."""
    if rng.random() < 0.06:
        values = {
            "a": str(rng.randint(2, 99)),
            "b": str(rng.randint(2, 99)),
            "c": str(rng.randint(2, 99)),
            "big": str(rng.randint(101, 9999)),
        }
        return user(rng, OTHER, values), say(rng, LIMIT)
    a, b = operands(rng)
    add = rng.random() < 0.5
    if not add and a < b and rng.random() < 0.6 and not is_held_out(b, a):
        a, b = b, a
    write = in_words if rng.random() < 0.08 else str
    patterns = ADD if add else SUBTRACT
    if habits(rng).by_digits:
        patterns = ADD + MORE_ADD if add else SUBTRACT + MORE_SUBTRACT
    if habits(rng).bare and rng.random() < habits(rng).bare:
        patterns, write = BARE_ADD if add else BARE_SUBTRACT, str
    question = user(rng, patterns, {"a": write(a), "b": write(b)})
    if "ifference" in question.text and a < b:
        a, b = b, a
    return question, answer(rng, a, b, add)


def answer(rng: random.Random, a: int, b: int, add: bool) -> str:
    if habits(rng).by_digits:
        return (sum_by_digits(a, b) if add else difference_by_digits(a, b)) + "."
    shown = sum_shown(a, b) if add else difference_shown(a, b)
    result = a + b if add else a - b
    ending = ", so the answer is {result}." if shown.count("=") > 1 else "."
    return say(rng, "{shown}" + ending, {"shown": shown, "result": str(result)})
