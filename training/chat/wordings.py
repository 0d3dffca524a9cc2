"""Sums and differences in loose words and little stories about anything: for the phases that ask broadly.

Slots: {a} and {b} the numbers, {who} a name or a person, {n} a plural noun, {n1} its singular, {p} a thing with its article.
"""

# ruff: noqa: E501 (patterns read best on one line)

import random

from . import words

HAS = "[has|had|owns|holds|got|keeps|counts|collected|found|bought|picked|made]"
I_HAVE = "[I|we|they|you] [have|had|own|hold|got|keep|count|collected|found|bought|picked|made|need|see]"
LEFT = "[how many are left|how many remain|what is left|how many [{n} |]does that leave|how many [{n} |]are still there|how many are there now|how many is that now|and how many now|how many stay|how many does that make|so how many left]"
TOTAL = "[how many in total|how many is that|how many altogether|how many all together|how many [{n} |]are there now|what is the total|how many in all|how many now|so how many|how many does that make|what's the number now|how much is it in total]"
ASK = "[what is|what's|what would|tell me|how much is|calculate|give me|I need|find|work out|could you say|do you know|can you tell me|please compute|compute|quick:|so what is|just tell me|let me know|I ask you:|quiz:|solve this:|my homework is:|easy one:|help me with]"
BROAD_ADD = [
    f"{{who}} {HAS} {{a}} {{n}}[ and|,|. Then {{who2}}] [gets|buys|finds|is given|picks up|receives|adds|wins|brings|makes] {{b}} more[.|,| {{n}}.] {TOTAL}?",
    f"{I_HAVE} {{a}} {{n}} and [{{who}}|my friend|my sister|she|he|a neighbour] [has|owns|brings|gives me|adds|sends|finds] {{b}}[.| more.| {{n}}.|,] {TOTAL}?",
    "if [I|you|we|{who}] [have|had|take|get|buy|see|start with] {a} {n} and [then |][add|get|buy|find|take|see|receive|pick up] {b} [more|others|more {n}|extra ones|again][, how many|, what's the total|, how many {n} is that|, how many is that| - how many]?",
    f"[there are|there were|I see|I count|we have|imagine|picture|suppose there are] {{a}} {{n}} [in|on|near|behind|at|under] {{p}}[ and|.|,] {{b}} [more |][come|arrive|join|are added|appear|turn up|are put there|fly in|walk in][.|,] {TOTAL}?",
    "[there are|we have|I have|{who} has|a farmer has] {a} {n} and {b} {n2}[.|,|:] [how many [animals|things|of them|items|pieces] [is that|are there|in all|altogether|do I have]|how many is that together|what's the total|how many in total|how many are they together]?",
    f"{ASK} [{{a}} [plus|+|and|added to|put together with|with another] {{b}}|the sum of {{a}} and {{b}}|{{b}} [added|on top of|plus] [to |]{{a}}|the total of {{a}} and {{b}}|adding {{b}} to {{a}}|{{a}} and {{b}} together|{{a}} + {{b}}|{{a}} with {{b}} added|{{b}} more than {{a}}|{{a}} increased by {{b}}|{{a}} raised by {{b}}][?|.|, please| for me|]",
    "[if you|when you|when I|if I|if we|once you] [add|put together|sum|combine|sum up|total|join] {a} and {b}[,] [what|what do you get|what's the result|what is the answer|which number is it|what comes out|how much is it|where do you end up|what's the sum]?",
    "[which|what] number [is|do I get if I|comes out when you|results when I|would I have if I] [{b} more than {a}|{b} bigger than {a}|{b} above {a}|add {b} to {a}|add {a} and {b}|go {b} up from {a}]?",
    "{a} [euros|dollars|pounds|cents|francs|points|minutes|hours|kilos|grams|metres|litres|steps|pages] [plus|and|and another|and then|and also|together with] {b} [euros|dollars|pounds|cents|francs|points|minutes|hours|kilos|grams|metres|litres|steps|pages|more][, how much|: total| is how much|, what's that| makes|, what do I get| in total| altogether|, all together]?",
    "[{p} costs|the {n1} costs|I pay|I spent|{who} paid|she spent] {a} [euros|dollars|pounds|] [for {p} |]and [{p} |the other one |then |another |]{b}[ more| for {p}|][.|,|:] [what's the total|how much together|how much was that|how much in all|what did it cost altogether|how much did [I|we] spend|total price]?",
    "[the bus|the train|a film|a class|the meeting|a song|the cake|it|my walk|the lesson] [takes|lasts|needs|took] {a} minutes and [then another|then|is delayed by|the break takes|the next one takes] {b}[.| minutes.|,] [how long is that|how long in total|how many minutes is that|how long altogether]?",
    "{who} is {a}[ years old|] and {who2} is {b} years older[.|,|:] [how old is {who2}|{who2}'s age|what is the age of {who2}]?",
    "{who} is {a}[ now| today| years old|][.|,] how old will [she|he|they] be [in {b} years|{b} years from now|after {b} years|{b} years later]?",
    "[my score|my team|our side|{who}|she|he] [was|has|had|got|is at|stood at|scored] {a} [points |]and [gains|scored|won|gets|made|got|earned] {b} [more|more points|extra|points][.|,] [what's the score|how many points is that|what is the score now|how many in total|what's the new score]?",
    "[could|can|would|will] you [please |quickly |] [work out|tell me|add up|calculate|compute|find|do] {a} [plus|and|+] {b}[ for me|, please|]?",
    "[it's|the clock is at|I am at|the lift is on|we are on|start on] [number |page |floor |step |]{a}[,| and| then] [go|move|climb|walk|jump|turn] {b} [up|forward|further|ahead|higher|more][.|,|:] [where [am I|are we]|which one is it now|what number is that]?",
    "[I'm thinking of|take|I have] [a number: {a}|the number {a}|{a}][.|,| and] [now |then |] add {b}[ to it|][.|, what is it now?|, result?|: what do you get?| and tell me the answer.]",
    "{a} [plus|+|and] {b}[, what is it|, what's that|... what is it|: answer|, please calculate| is what|, work it out|, solve it|, I forgot| - do you know|, can you do it|, hm]?",
    "[is|does|would] {a} [plus|+|and] {b} [make|be|equal|give] [what|how much|which number]?", "[a sum|one sum|an addition|math question|a calculation|next sum|maths time|let's add|adding up][:| -|,] {a} [plus|+|and] {b}[.|?|]",
]  # fmt: skip
BROAD_SUBTRACT = [
    f"{{who}} {HAS} {{a}} {{n}}[ and|,|, but|. Then {{who2}}] [loses|sells|eats|gives away|breaks|uses|drops|throws away|takes|hides|forgets|lends] {{b}}[.|,| of them.| {{n}}.] {LEFT}?",
    f"{I_HAVE} {{a}} {{n}} and [I|{{who}}|my friend|my sister|she|he|the dog|a thief] [take|takes|took|ate|eats|lose|sold|stole|used|broke|gave away|hid] {{b}}[.| of them.| {{n}}.|,] {LEFT}?",
    "if [I|you|we|{who}] [have|had|take|get|buy|start with|own] {a} {n} and [then |][lose|eat|sell|give away|use|remove|take away|throw out|hand out|spend|drop] {b}[ of them| {n}|][, how many are left|, what's left|, how many remain|, how many {n} are left| - how many|, how many do I still have|, how many then]?",
    f"[there are|there were|I see|I count|we have|imagine|picture|suppose there are] {{a}} {{n}} [in|on|near|behind|at|under] {{p}}[ and|.|,|, but] {{b}} [of them |][go away|leave|fly off|run away|are taken|disappear|are sold|are broken|fall down|walk out|vanish|go home][.|,] {LEFT}?",
    "[there are|we have|I have|{who} has|a farmer has] {a} {n} and {b} {n2}[.|,|:] how many more {n} than {n2}[ are there| are they| do I have| is that|]?",
    f"{ASK} [{{a}} [minus|-|less|take away|without] {{b}}|the difference between {{a}} and {{b}}|the difference of {{a}} and {{b}}|{{b}} [taken|subtracted|deducted|removed|taken away] from {{a}}|subtracting {{b}} from {{a}}|{{a}} - {{b}}|{{a}} with {{b}} taken off|{{b}} less than {{a}}|{{b}} fewer than {{a}}|{{a}} reduced by {{b}}|{{a}} lowered by {{b}}][?|.|, please| for me|]",
    "[if you|when you|when I|if I|if we|once you] [take|subtract|remove|take away|deduct|cut] {b} from {a}[,] [what|what do you get|what's the result|what is the answer|which number is it|what comes out|how much is it|where do you end up|how much is left|what remains|what's left]?",
    "[which|what] number [is|do I get if I|comes out when you|results when I|would I have if I] [{b} less than {a}|{b} smaller than {a}|{b} below {a}|take {b} from {a}|subtract {b} from {a}|go {b} down from {a}]?",
    "{a} [euros|dollars|pounds|cents|francs|points|minutes|hours|kilos|grams|metres|litres|steps|pages] [minus|less|without|take away|but not] {b} [euros|dollars|pounds|cents|francs|points|minutes|hours|kilos|grams|metres|litres|steps|pages|of them][, how much|: rest| is how much|, what's that| leaves|, what do I get| leaves what|, what is left]?",
    "[I|{who}|she|my father|we] [had|have|has|had in the purse|started with|took] {a} [euros|dollars|pounds|coins] and [spent|paid|lost|lent {who2}|gave {who2}|gave away|bought {p} for] {b}[.|,|:] [how much is left|how much money is left|what's left|how much remains|what is the rest|how much is still there|how much [do I|does she] have now]?",
    "[{p} costs|the {n1} costs|the bill is] {b} [euros|dollars|pounds] and I [give|pay with|hand over|have|put down] {a}[.|,|:] [how much do I get back|what's my change|how much change|what will be left|how much change do I get]?",
    "[{p} costs|the {n1} was|the price was|it cost] {a} [euros|dollars|pounds|][ but|,| and] [is|it's|now it's|today it is|I get it] {b} [cheaper|less|off|off today|lower][.|,|:] [what's the price now|what do I pay|how much is it|what does it cost now|the new price]?",
    "[the film|the class|the meeting|the trip|the game|my shift|the lesson|it] [takes|lasts|is] {a} minutes and {b} [are over|are gone|minutes have passed|have passed|are already done|minutes are over][.|,] [how long is left|how many minutes are left|how much longer|how many to go|how long will it still take]?",
    "{who} is {a}[ years old|] and {who2} is {b} years younger[.|,|:] [how old is {who2}|{who2}'s age|what is the age of {who2}]?",
    "{who} is {a}[ now| today| years old|][.|,] how old was [she|he] [{b} years ago|{b} years back|{b} years earlier]?", "{who} is {a} and {who2} is {b}[.|,|:] [what's the difference in age|how much older is {who}|by how many years is {who} older|how many years apart are they|what is the age gap]?",
    "[my score|my team|our side|{who}|she|he] [was|has|had|got|is at|stood at|scored] {a} [points |]and [loses|lost|drops|is fined|gives up|had to give back] {b}[ points| of them|][.|,] [what's the score|how many points are left|what is the score now|how many remain|what's the new score]?",
    "[could|can|would|will] you [please |quickly |] [work out|tell me|calculate|compute|find|do] {a} [minus|less|-|take away] {b}[ for me|, please|]?", "[could|can|would|will] you [please |quickly |] [tell me|say|work out] [how much|what] {a} [minus|less|-] {b} [is|makes|gives|comes to]?",
    "[it's|the clock is at|I am at|the lift is on|we are on|start on] [number |page |floor |step |]{a}[,| and| then] [go|move|climb|walk|jump|turn] {b} [down|back|backwards|lower|to the bottom][.|,|:] [where [am I|are we]|which one is it now|what number is that]?",
    "[I'm thinking of|take|I have] [a number: {a}|the number {a}|{a}][.|,| and] [now |then |] [subtract {b}|take away {b}|remove {b}][ from it|][.|, what is it now?|, result?|: what do you get?| and tell me the answer.]",
    "{a} [minus|-|less] {b}[, what is it|, what's that|... what is it|: answer|, please calculate| is what|, work it out|, solve it|, I forgot| - do you know|, can you do it|, hm]?", "[how many|how much|what] [is missing|is needed|do I need|must be added|do I lack] [from {b} to {a}|to get from {b} to {a}|to make {b} into {a}]?", "[I|we|{who}] [want|need|wants|needs] {a} {n} and [have|has|already have|already has|got] {b}[.|,|:] [how many are missing|how many more|how many do [I|we] still need|how many to go|how many are still needed]?",
    "[a difference|one difference|a subtraction|math question|a calculation|next one|maths time|let's subtract|taking away][:| -|,] {a} [minus|-|less] {b}[.|?|]", "[by how much|how much] [is|must I lower|do I lower] {a} [larger than|bigger than|higher than|more than|to get to|to reach|greater than] {b}?",
]  # fmt: skip


def worded_values(rng: random.Random) -> dict[str, str]:
    """What fills the slots of a story besides its numbers."""
    things = [
        rng.choice([words.THINGS, words.ANIMALS, words.PEOPLE, words.THINGS])
        if rng.random() < 0.9
        else [words.made_up(rng)]
        for _ in "ab"
    ]
    singular, other = (rng.choice(list_) for list_ in things)
    person = rng.choice(words.PEOPLE)
    return {
        "who": rng.choice([words.name(rng), words.name(rng), f"the {person}", f"a {person}", f"my {person}"]),
        "who2": words.name(rng),
        "n": plural(singular),
        "n1": singular,
        "n2": plural(other),
        "p": rng.choice(["the ", "a ", "my "]) + rng.choice(words.THINGS),
    }


def plural(noun: str) -> str:
    irregular = {"mouse": "mice", "goose": "geese", "sheep": "sheep", "deer": "deer", "man": "men", "woman": "women"}
    if noun in irregular:
        return irregular[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    return noun[:-1] + "ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else noun + "s"
