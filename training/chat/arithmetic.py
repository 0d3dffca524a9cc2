"""Adding and subtracting whole numbers from 0 to 100: questions in many phrasings, answers that show one step of work.

The answer repeats the calculation in one form ("27 + 45 = 60 + 12 = 72") whatever the question looked like. Where a carry or a borrow is
needed, the step in the middle shows it, so that no digit depends on a calculation that is not written yet.
"""

# ruff: noqa: E501, SIM905 (patterns and word lists read best on one line)

import random

from .phrasing import Typed, say, user
from .wordings import BROAD_ADD, BROAD_SUBTRACT, worded_values
from .words import broadly, habits

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
# Little stories and loose wordings: two numbers and a word that says which way to go.
WORDED_ADD = [
    "[a|one|the] [bus|train|ship|boat|plane|lift] [has|holds|carries] {a} [people|passengers|children|travellers][ and|,] {b} [more |][get on|climb in|board|join][.|,] [how many people is that|how many are on it now|how many are inside now]?",
    "[Anna|Tom|my sister|my friend|the baker|a farmer|Lily|my boss] [has|owns|bought|found|made|picked|sold] {a} [eggs|pears|shells|cakes|tickets|stamps|marbles] [and|plus|and then|and later] {b} [more|others|again][.|,] [how many altogether|what's the total|how many in the end|how many is that|count them]?",
    "[yesterday|in the morning|on Monday|last week] I [read|walked|wrote|drove|ran|saw] {a} [pages|miles|lines|birds|words] and [today|in the evening|on Tuesday|this week] {b}[.|,] [how many is that|how many in total|what's the sum|how much altogether]?",
    "[a|the|one] [ticket|shirt|book|lamp|meal|coffee] [costs|is] {a} [euros|dollars|pounds] and [a|the|the other] [hat|ride|drink|cup|plate|bag] [costs|is|another] {b}[.|,| ] [how much for both|what do I pay|what do I owe|how much together|what do both cost]?",
    "[I'm|he is|she is|my dog is|my uncle is] {a} [now|years old|today][.|,] how old [will I|will that] be in {b} years?",
    "[it was|the temperature was] {a} degrees and [rose|went up|climbed] [by |]{b}[.|,] [what is it now|how warm is it|how many degrees now]?",
    "[start|begin] [with|at|from] {a}[,| and] [then |][go up|add|count up|move up|climb] [by |]{b}[.|, where am I?|, where do I land?|, what do I get?]",
    "{a} [and|, then|, and also|, then another|along with|on top of|combined with] {b}[: how much|, how much is it|: what's the total|, all together|, what does it make|, in sum][?|.|]",
    "[how many|how much] [is|are] {a} [things|coins|points|steps|minutes|sheep|of them] [and|plus|with] {b} [things|coins|points|steps|minutes|sheep|more]?",
    "[the|my] [first|one|old|left] [box|number|bag|room|team|part] [has|is|got|counts] {a}[ and|,] the [second|other|new|right] [one |][has|is|got|counts] {b}[.|,] [what's the sum|what do they make|how much together|total]?",
    "I [need|want|would like|have to know|must know] [the sum of|the total of|to add|to know] {a} [and|plus|+] {b}[.|]",
    "[could|would|can|will] you [please |kindly |quickly |][sum|total|add up|put together|combine] {a} [and|with] {b}[ for me|]?",
    "[a|my] [number|score|balance|count] of {a} [grows|rises|goes up|increases|gains] [by |]{b}[.|,| to] [what is it now|how much is it|what]?",
    "[we were|there were|they counted|I counted] {a} [of us|guests|cars|cows|fish|trees] [before|first|at first|,] [and|then] {b} [came|arrived|joined|more came|were added][.|,] [how many now|how many are there|what's the new number]?",
    "[my|the] [bank|jar|basket|shelf|garden] [had|holds|contains] {a} [coins|jars|plants|books|toys] and I [put in|added|placed|bring|planted] {b} [more|others][.|,] [how many does it hold|how many now|so how many]?",
    "[so|now|next|then|please][,|] {a} [+|plus|and] {b}[, what do we get|: your answer|, the answer is|, go|, quickly|, hm][?|.|]",
    "[sum|total|addition|adding|plus][:| of|] {a}, {b}[?|.|]",
    "[if|when|suppose|imagine|assume|let's say] [x|n|one number|a number] is {a} and [y|m|another|the other] is {b}[,| then] what is [their sum|x plus y|the total|both together|the sum of the two]?",
    "[is it|can it be|is that] {a} [+|plus] {b}[ equal to what|, but how much|, and what is that]?",
    "[two|the two] numbers, {a} and {b}[:|.|,] [add them|what is their sum|sum them up|how much together][.|?|]",
]
WORDED_SUBTRACT = [
    "[a|one|the] [bus|train|ship|boat|plane|class] [has|holds|carries] {a} [people|passengers|children|students][ and|,] {b} [of them |][get off|leave|go home|step out|exit][.|,] [how many are still there|how many remain|how many are inside now|how many are left]?",
    "[Anna|Tom|my sister|my friend|the baker|a farmer|Lily|my boss] [has|had|owns|bought|made|picked] {a} [eggs|pears|shells|cakes|tickets|stamps|marbles] [and|but|and then] [gives away|sells|loses|breaks|eats|uses|drops|forgot] {b}[.|,| of them,] [how many are left|how many does that leave|how many remain|what remains|how many now]?",
    "[the|my|this] [book|trip|film|rope|road|list] [has|is|counts] {a} [pages|miles|minutes|metres|items] and I [did|have done|finished|covered|cut off|used] {b}[.|,] [how many to go|how many are left|how much remains|what is still missing]?",
    "[a|the] [coat|phone|book|lamp|meal|toy] [costs|cost|was] {a} [euros|dollars|pounds] [but is|and is now|minus a discount of|and gets|now] {b} [less|cheaper|off][.|,] [what's the price|how much is it now|what do I pay|what does it cost]?",
    "I [pay|paid|give|gave] with {a} [euros|dollars|pounds] for [something|a book|a thing] that costs {b}[.|,] [how much change|what's my change|what do I get back|how much is the change]?",
    "[I'm|he is|she is|my dog is|my uncle is] {a} [now|years old|today][.|,] how old [was I|was that] {b} years ago?",
    "[it was|the temperature was] {a} degrees and [fell|went down|dropped|sank] [by |]{b}[.|,] [what is it now|how cold is it|how many degrees now]?",
    "[start|begin] [with|at|from] {a}[,| and] [then |][go down|go back|count down|move back|step back] [by |]{b}[.|, where am I?|, where do I land?|, what do I get?]",
    "[how much|how many] [more|higher|larger|greater] is {a} than {b}?",
    "[how much|how far|how many steps] is it from {b} [up |]to {a}?",
    "[what|how much] [must|do|should] I add to {b} to [get|reach|make|come to] {a}?",
    "{a} [without|except|less|but {b} fewer:|lowered by|shortened by|cut by] {b}[: how much|, how much is it|: what's left|, what does it leave|][?|.|]",
    "I [need|want|would like|have to know|must know] [the difference of {a} and {b}|what {a} less {b} is|to take {b} from {a}|to subtract {b} from {a}][.|]",
    "[could|would|can|will] you [please |kindly |quickly |][subtract|deduct|take|remove] {b} from {a}[ for me|]?",
    "[a|my] [number|score|balance|count] of {a} [shrinks|falls|goes down|decreases|drops] [by |]{b}[.|,| to] [what is it now|how much is it|what]?",
    "[there were|they counted|I counted|we had] {a} [guests|cars|cows|fish|trees|birds] [and|but|then] {b} [left|flew away|disappeared|were sold|went away|got lost][.|,] [how many now|how many are there now|what's the new number|how many stay]?",
    "[my|the] [bank|jar|basket|shelf|fridge] [had|holds|contains] {a} [coins|jars|plants|books|eggs] and I [take out|removed|took|lent|spent] {b}[.|,| of them,] [how many does it hold now|how many now|so how many are left]?",
    "[so|now|next|then|please][,|] {a} [-|minus] {b}[, what do we get|: your answer|, the answer is|, go|, quickly|, hm][?|.|]",
    "[if|when|suppose|imagine|assume|let's say] [x|n|one number|a number] is {a} and [y|m|another|the other] is {b}[,| then] what is [x minus y|the first minus the second|the first less the other|the difference]?",
    "[my|her|his] [friend|sister|team|rival] has {b}[ and|,] [I have|mine has|we have] {a}[.|,] how many more [do I have|is that|are those]?",
    "[of|from|among] {a} [apples|players|questions|tickets|eggs], {b} [are|were] [bad|gone|wrong|used|sold|broken][.|,] [how many are good|how many are fine|how many are still there|what remains]?",
]
WHEN = "[| today| in the morning| at lunch| this week| by the evening| last night| at the start| in the end| later| after that| on Friday| before noon]"
ROOMY_ADD = [
    f"I [have|had|own|got|picked] {{a}} [apples|nuts|cards|roses|coins|shirts|bottles]{WHEN} and [my friend|my neighbour|my aunt|somebody|she|Max] [gives|gave|brings|brought|hands|sends] me {{b}} more{WHEN}[.|,] [how many [apples |nuts |cards |coins |]do I have now|how many is that now|how many have I got|how many are there in all]?",
    f"[there are|we have|I see|we counted] {{a}} [kids|people|men|ducks|boats|cups] [on the bus|in the room|in the yard|on the lake|here|at the party]{WHEN} and {{b}} more [get on|come in|arrive|join|turn up|appear]{WHEN}[.|,] [how many are [there|here|inside|on the bus|in the room] now|how many is that|how many then]?",
    "my [grandma|father|cat|teacher|neighbour|boss|brother] is {a}[ years old|][.|,] how old will [she|he|it] be in {b} years[ time|]?",
    f"[we|I|they] [drove|walked|flew|sailed|ran|rode] {{a}} [km|miles|kilometres|metres]{WHEN} and {{b}} [km |miles |kilometres |more |]{WHEN}[.|,] [how far did [we|I|they] go in all|how far is that|how far in total|how long was the whole way]?",
    f"[it was|we had] {{a}} degrees{WHEN} and it [rose|went up|got warmer] by {{b}}{WHEN}[.|,] [what's the temperature now|how warm is it now|what is it now]?",
    f"[I|she|we|he] [earned|saved|won|scored|collected] {{a}} [euros|dollars|points|stamps]{WHEN} and [then |another |]{{b}} [more |]{WHEN}[.|,] [how much is that [in total|together|]|what's the total|how many altogether]?",
]
ROOMY_SUBTRACT = [
    f"I [have|had|own|got|baked] {{a}} [apples|nuts|cards|roses|coins|cookies|bottles]{WHEN} and [I|my friend|my dog|the kids|she|Max] [eat|eats|ate|lose|lost|take|takes|took|broke] {{b}}{WHEN}[.|,] [how many [apples |nuts |cards |coins |]are left|how many do I have left|what is left|how many remain]?",
    "[a|the] [train|hall|theatre|plane|bus|cinema] has {a} [seats|places][ and|,] {b} are [taken|booked|full|occupied|reserved][.|,] how many [seats |places |][are free|are empty|are left|can I still book]?",
    "[Anna|Tom|my sister|his father|Lily|Ben] is {a} and [her|his|my] [brother|cousin|friend|son|wife] is {b}[.|,] [how many years older is [she|he]|what is the age difference|how much older is [she|he]|how many years are between them]?",
    "my [book|novel|thesis|magazine|album] has {a} pages and [I've read|I read|I am at page|I have finished] {b}[.|,] [how many to go|how many pages are left|how many more to read|how much is left]?",
    f"[it was|we had] {{a}} degrees{WHEN} and it [dropped|fell|went down|cooled down] by {{b}}{WHEN}[.|,] [what's the temperature now|how cold is it now|what is it now]?",
    "I owe [my friend|Max|the bank|my brother] {a} [euros|dollars|pounds] and [paid back|gave back|returned|paid] {b}[.|,] [what do I still owe|how much is left to pay|how much do I still owe]?",
    f"[there were|we had|I saw] {{a}} [kids|people|ducks|boats|cups|birds] [on the bus|in the room|in the yard|on the lake|here|at the party]{WHEN} and {{b}} [left|went home|got off|went away|disappeared]{WHEN}[.|,] [how many are [there|here|still there|left] now|how many stayed|how many then]?",
    "[the|a|my] [way|trip|road|race] is {a} [km|miles] [long|][ and|,] [I|we] [did|have gone|walked|ran] {b}[.|,] [how far is it still|how far to go|how much is left|what remains]?",
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
    """`a + b = ...` with the step that shows a carry."""
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
        elif kind < 0.47 and broadly(rng):  # close together: which of the two is larger, and by nothing at times
            b = min(100, max(0, a + rng.choice([0, *range(-9, 10)])))
        if not is_held_out(a, b):
            return a, b


def arithmetic_turn(rng: random.Random) -> tuple[Typed, str]:
    """A question and its answer."""
    if rng.random() < (0.025 if habits(rng).roomy else 0.06):
        values = {
            "a": str(rng.randint(2, 99)),
            "b": str(rng.randint(2, 99)),
            "c": str(rng.randint(2, 99)),
            "big": str(rng.randint(101, 9999)),
        }
        return user(rng, OTHER, values), say(rng, LIMIT)
    a, b = operands(rng)
    add = rng.random() < 0.5
    if not add and a < b and rng.random() < (0.45 if habits(rng).broad else 0.6) and not is_held_out(b, a):
        a, b = b, a
    write = in_words if rng.random() < 0.08 else str
    patterns = ADD if add else SUBTRACT
    if habits(rng).by_digits:
        patterns = ADD + MORE_ADD if add else SUBTRACT + MORE_SUBTRACT
    if habits(rng).bare and rng.random() < habits(rng).bare:
        patterns, write = BARE_ADD if add else BARE_SUBTRACT, str
    if habits(rng).worded and rng.random() < habits(rng).worded:
        patterns = WORDED_ADD if add else WORDED_SUBTRACT
        if habits(rng).roomy and rng.random() < 0.5:
            patterns = ROOMY_ADD if add else ROOMY_SUBTRACT
    values = {"a": write(a), "b": write(b)}
    if habits(rng).broad and patterns not in (BARE_ADD, BARE_SUBTRACT) and broadly(rng):
        patterns, values = BROAD_ADD if add else BROAD_SUBTRACT, values | worded_values(rng)
    question = user(rng, patterns, values)
    two_ways = ("ifference", " older is ", " apart ") if habits(rng).broad else ("ifference",)
    if a < b and any(words in question.text for words in two_ways):
        a, b = b, a
    return question, answer(rng, a, b, add)


def answer(rng: random.Random, a: int, b: int, add: bool) -> str:
    if habits(rng).by_digits:
        return (sum_by_digits(a, b) if add else difference_by_digits(a, b)) + "."
    shown = sum_shown(a, b) if add else difference_shown(a, b)
    result = a + b if add else a - b
    ending = ", so the answer is {result}." if shown.count("=") > 1 else "."
    return say(rng, "{shown}" + ending, {"shown": shown, "result": str(result)})
