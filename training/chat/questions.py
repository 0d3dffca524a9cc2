"""Questions on the topics, in the many ways that people ask: what, why, how, who made it, how two of them differ, and more of it."""

# ruff: noqa: E501 (patterns and word lists read best on one line)

import random

from .phrasing import Typed, say, user
from .topics import (
    GRADIO,
    HUGGING_FACE,
    JAX,
    JIT,
    KV_CACHE,
    MORE,
    PYTORCH,
    STATIC_CACHE,
    TOPICS,
    TORCHAX,
    TPU,
    XLA,
    Topic,
)
from .words import broadly

WHAT = [
    "[could|can|would] you [please |] [tell me|give me|say] [a bit|something|more|a little|a few words|the basics|a summary|the short version] [about|on|of] {x}?",
    "[I need|I want|I'm looking for|give me|let me have|I would love] [to know what {x} is|information about {x}|the basics of {x}|some facts about {x}|a few words on {x}|an explanation of {x}|a definition of {x}][.|]",
    "[what's the deal with|what's so special about|what is special about|what's up with|how would you describe|how would you explain|how do you define|what should I know about|what is your take on|what's the story with] {x}?",
    "[who or what|what or who|what kind of library|what kind of software|what kind of technique|what kind of tool|what kind of thing|which sort of tool] is {x}?",
    "{x}[, | - |: |... |? ][what's that|what is it|explain|explain please|tell me|define|meaning|what does it do|please explain|what's that about][?|.|]",
    "what [role does {x} play|does {x} do for me|is {x} all about|does {x} refer to|does {x} have to do with this demo|do you call {x}]?",
    "[what is|what's|what exactly is|what actually is|so what is|what on earth is] {x}[ exactly| all about|]?",
    "[what are|what is|tell me what is|tell me what's] {x}?",
    "[explain|define|describe|please explain] {x}[ to me| briefly| in one sentence| in simple words| simply| to a beginner| like I'm five|][.|]",
    "[can you|could you|would you] [explain|describe|define|tell me about|tell me what is|explain what is] {x}[ to me|]?",
    "[tell me about|tell me something about|tell me a bit about|talk about|say something about|teach me about] {x}[.|]",
    "[do you know|do you know about|have you heard of|ever heard of|are you familiar with] {x}?",
    "[do you know|can you tell me|could you tell me|please tell me|I'd like to know|I want to know|explain] what {x} [is|are|means][.|?|]",
    "[what do you know|what can you tell me|what can you say] about {x}?",
    "what [does|do] {x} [mean|do]?",
    "what [is|are] [meant|understood] by {x}?",
    "[give me|I need|can I get|write] a [short|quick|brief|simple|] [description|definition|explanation|summary|introduction] [of|to] {x}[.|]",
    "I [keep hearing|heard|often hear|read] about {x}[.|. What is it?|, what is that?|, can you explain?|]",
    "[I don't know what {x} is|I've never heard of {x}|I don't understand {x}|I'm new to {x}|I'm curious about {x}][.|. Can you help?|, please explain.|]",
    "{x}?",
    "{x}",
    "[I want to|I'd like to|help me|let's] [learn about|understand|talk about|know about] {x}[.|]",
    "what [kind of thing|sort of thing] is {x}?",
    "[in simple words|in short|in one sentence|briefly|in a nutshell], what is {x}?",
    "{x} - what is [that|it]?",
    "[is {x} a library|is {x} a company|is {x} a chip|is {x} a program|is {x} software|is {x} a language]?",
    "someone [mentioned|told me about|asked me about] {x}[. What is it?|, what is that?|]",
]
WHY = [
    "what [makes {x} useful|makes {x} so good|makes {x} special|makes {x} fast|would I need {x} for|do I gain from {x}|are {x} there for|would someone use {x} for]?",
    "why [did they use|did someone invent|does everyone use|do models have|do engineers like|does one need|do programs use|is everybody using|do we have|was there a need for|would it be good to have] {x}?",
    "[in which cases|for what|in what situation|since when] [is {x} useful|do I need {x}|should I use {x}|would {x} help]?",
    "why [use|should I use|would I use|do people use|would anyone use|do we use|do you use|do we need|do I need|would I want] {x}?",
    "why [is|are] {x} [useful|good|important|needed|popular|used|so fast|helpful|interesting]?",
    "[what is|what's|what are] {x} [good for|used for|useful for|for]?",
    "what [is|are] the [point|use|benefit|benefits|advantage|advantages|purpose] of {x}?",
    "why does {x} matter?",
    "when [should|would] [I|one|you] use {x}?",
    "[what can I do|what can one do] with {x}?",
    "what do [people|you] use {x} for?",
    "[how does|does|how can] {x} [help|make things faster|speed things up]?",
    "what problem does {x} solve?",
    "is {x} [worth it|any good|worth using|useful|fast]?",
]
HOW = [
    "[what's the|what is the] [trick|idea|secret|basic idea|magic|logic] [behind|of|in] {x}?",
    "[in what way|by what means|how exactly|how on earth|how come] [does {x} work|{x} works|does {x} do its job|does {x} make it]?",
    "[could you|would you|can you] [please |] [say|describe|show|tell me|explain] how {x} [works|does it|functions|operates]?",
    "how [does|do] {x} work?",
    "how [does|do] {x} work [exactly|internally|under the hood|inside]?",
    "[explain|tell me|can you explain|describe|do you know|show me] how {x} [works|work][.|?|]",
    "what [happens|goes on] [inside|in|with|when you use] {x}?",
    "how [is|are] {x} [implemented|done|built|made to work]?",
    "what [is|are] the [idea|mechanism|principle] behind {x}?",
    "[walk me through|take me through] {x}[.|]",
    "how do [I|you] use {x}?",
]
STANDS = [
    "what [does|do] {x} stand for?",
    "what [is|are] {x} short for?",
    "[what is|what's|tell me] the [full form|long form|full name|meaning] of {x}?",
    "[what do the letters {x} mean|spell out {x}|what is {x} an abbreviation of|what does the acronym {x} mean|what do the letters in {x} stand for]?",
]
MAKER = [
    "who [made|created|develops|developed|built|invented|makes|is behind|maintains|owns|wrote|started|founded|runs] {x}?",
    "[which|what] company [made|makes|is behind|develops|created|owns] {x}?",
    "where [does|do] {x} come from?",
    "[is|was] {x} [made|developed|created|built] by [Google|Meta|Hugging Face|Microsoft|OpenAI]?",
]
FOLLOWING = "[thanks|thank you|ok|okay|I see|great|nice|interesting|cool|good|aha|right|understood|fine|got it|hm][.|,|!|...] [and |but |now |so |]"
BROAD_WHAT = [
    "[what|so what|and what|okay, what] [is|are|was|exactly is|precisely is|might be|do you mean by|do they mean by|do people mean by|should I understand by|do you understand by] {x}[, please| in plain English| in plain words| in easy words| for a child|, in one line| supposed to be| in this context|]?",
    "[I saw|I read|I heard|I found|I came across|people talk about|they told me about|my boss uses|my teacher mentioned|the docs mention|the page mentions|everyone talks about] [the name |the term |] {x} [today|yesterday|somewhere|in an article|a lot|all the time|in a talk|][,|.] [what does it mean|what is it|what's that|what is that about|explain it|can you tell me what it is|what's it about][?|.|]",
    "[please |kindly |quickly |] [tell me|let me know|say|explain|describe|clarify|outline|summarise|summarize|introduce|sketch] [to me |] [what {x} [is|are|does|means]|{x}|the idea of {x}|the meaning of {x}|the concept of {x}|the term {x}][ in a few words| please| in two sentences| for beginners| for dummies| to my grandma| to a child|][.|?|]",
    "[what's your|give me a|can you give a|I need a|do you have a] [definition|description|explanation|short answer on|quick answer on|one-line summary|simple explanation] [of|for] {x}[?|.|]",
    "[how would you|can you|could you] [define|sum up|summarise|put into words|describe|introduce|present] {x}[ in short| for me| briefly|]?",
    "[where|when] [does|do|will|would] [I meet|I see|one meet|one find|people meet|you find] {x}[, and what is it| and what does it mean]?",
    "[where|how] [does|do] {x} [come in|fit in|enter the picture|fit into this demo|belong]?",
    "[what|which] [part|job|role|task|function|place] does {x} [have|play|do|take|fulfil|take on] [here|in this demo|in machine learning|in all this|]?",
    "what does {x} [do|actually do|really do|do exactly|do in practice|offer|give me|provide|bring|contain|involve|look like|do in this demo|do for a model|do under the hood]?",
    "[do you|can you|could you] [know|say|tell me|explain] [anything|something|a thing or two|a bit|more] [about|on|of] {x}?",
    "[is|are] {x} [something to eat|a kind of software|a technique|hardware or software|a person|an animal|a brand|a tool|a method|a thing or an idea|a product]?",
    "[my|a|our] [friend|teacher|colleague|boss|daughter|student|professor] [asks|wants to know|asked me|wonders] [what {x} is|about {x}|what {x} means|what {x} does][.|. What do I say?|. Can you explain?|]",
    "[not sure|no clue|no idea|I forgot|I wonder|I have no idea|I always forget|never understood|I don't get] what {x} [is|are|means|does|do][.|. Help!|, can you help?|, please explain.|]",
    "[all about|facts about|basics of|introduction to|lesson on|meaning of|definition of|info on|more about|summary of] {x}[, please|.|?|]",
    "[let's|I'd like to|we should|can we|shall we] [talk about|discuss|speak about|turn to|start with|go over|look at] {x}[.|?|, please.]",
]
BROAD_WHY = [
    "[why|for what reason|what for|to what end] [do|does|did|would|should|must|might] [people|one|anyone|developers|engineers|this demo|we|you|a program|companies|researchers|a beginner] [use|need|want|choose|like|care about|pick|bother with|employ|rely on] {x}?",
    "[what|which] [advantage|advantages|benefits|profit|gain|good|strengths] [does|do] {x} [have|bring|offer|give|give me|bring us|provide]?",
    "[what|how] [do|would|can|could] [I|we|you|one|people|a company] [gain|win|profit|benefit|get] [from|with|by using|out of] {x}?",
    "[what|why] [is|are] {x} [so great|so popular|such a good idea|a good thing|worth learning|important for|better than nothing|necessary|there at all|so widely used|there for]?",
    "[who|which people|what kind of people|which programs] [needs|need|uses|use|wants] {x}[, and why|, and what for| and for what|, and for which purpose]?",
    "[is there|what is] [a|any|the] [reason|point|benefit|sense|good reason] [to use|in using|for|in having|of having|to have|of] {x}?",
    "[should|must|do] I [care about|learn|use|need|know|bother with] {x}[, and why| at all|]?",
    "[convince me|tell me|explain|say|show me] [to use {x}|why {x} matters|why I need {x}|why {x} is useful|what {x} is good for|why one uses {x}|what I need {x} for|why people like {x}][.|, please.|]",
    "[what would happen|what if I work|how is life|how would it be] without {x}?",
]
BROAD_HOW = [
    "[tell me|explain|show me|describe|I'd like to know|I want to understand|I wonder|teach me|do you know|help me understand] how {x} [works|functions|does its work|gets its job done|is working|operates|does what it does][ in detail| step by step| inside| roughly| in short|][.|, please.|?|]",
    "how [does|do|can|could] {x} [function|operate|do that|actually work|do its job|really work|manage that|go about it|do the work|get it done|work in practice|work, roughly|work, in short|do what it does]?",
    "[what|which] [steps|parts|stages|ideas|tricks] [does|do] {x} [take|have|use|consist of|go through|rely on|involve]?",
    "[what's|what is] [going on|happening|done|behind the scenes|the mechanism|the principle|the method] [in|inside|with|within|of] {x}?",
    "[by what magic|in which way|through what mechanism|how exactly|in detail, how] does {x} [work|function|do its thing|operate]?",
    "[the|a] [inner workings|mechanics|functioning|way of working|machinery] of {x}[, please|?|.|: explain|]",
    "[how is it that|how can it be that] {x} works?",
    "[step by step|roughly|briefly|in short|basically|technically], how does {x} work?",
    "[what do I|what does one|what must I|how would I|where do I] [do to use|begin with|start with|write to use|do with] {x}?",
]
COMPARE = [
    "[what is|what's|explain|tell me] the difference between {x} and {y}[?|]",
    "[how is|how does|in what way is] {x} [different from|differ from|unlike|compared to] {y}?",
    "{x} [vs|or|versus|vs.] {y}?",
    "[compare {x} and {y}|compare {x} with {y}|{x} compared to {y}][.|]",
    "[is {x} the same as|is {x} better than|is {x} faster than|how are {x} and] {y}[| different]?",
    "[should I use|which is better,] {x} or {y}?",
    "[how do {x} and {y} differ|are {x} and {y} the same|what do {x} and {y} have in common|how are {x} and {y} related]?",
]
PAIRS = (
    (
        JAX,
        PYTORCH,
        "PyTorch runs each operation as Python reaches it, while JAX traces pure functions and compiles them with XLA.",
    ),
    (
        JAX,
        XLA,
        "JAX is the Python library that you write code with, and XLA is the compiler that JAX uses to make that code fast.",
    ),
    (JAX, TORCHAX, "JAX is a library for array programs, and torchax runs PyTorch code on top of JAX."),
    (PYTORCH, TORCHAX, "PyTorch is the library that models are written in, and torchax runs those models on JAX."),
    (
        KV_CACHE,
        STATIC_CACHE,
        "A KV cache stores keys and values of earlier tokens. A StaticCache is a KV cache with a fixed size, so it can be compiled once.",
    ),
    (JIT, XLA, "Jit is the JAX function that asks for compilation, and XLA is the compiler that does the work."),
    (JIT, JAX, "JAX is the library, and jit is its function that compiles other functions with XLA."),
    (
        GRADIO,
        HUGGING_FACE,
        "Gradio is a library for web interfaces, and Hugging Face is the company and hub whose team develops it.",
    ),
)
NAMED = {topic.names[0]: topic for topic in MORE}
PAIRS += (
    (
        TPU,
        NAMED["a GPU"],
        "A TPU is a chip made by Google only for machine learning, while a GPU is a more general chip with many small cores.",
    ),
    (
        TPU,
        NAMED["a CPU"],
        "A CPU is a general chip that does everything, while a TPU is built only for the matrix multiplications of machine learning.",
    ),
    (
        NAMED["Gemma"],
        NAMED["Llama"],
        "Gemma is a family of open language models by Google, and Llama is one by Meta. Both are transformers.",
    ),
    (
        NAMED["prefill"],
        NAMED["decoding"],
        "Prefill reads the whole prompt at once, while decoding writes the answer one token at a time.",
    ),
    (
        NAMED["bfloat16"],
        NAMED["float32"],
        "Bfloat16 has 16 bits and float32 has 32. Bfloat16 halves the memory and is less precise.",
    ),
    (
        NAMED["top-p"],
        NAMED["top-k"],
        "Top-k keeps a fixed number of tokens, while top-p keeps as many tokens as are needed to reach the probability p.",
    ),
    (
        NAMED["transformers"],
        NAMED["diffusers"],
        "Transformers is the Hugging Face library for language models and others, and diffusers is the one for diffusion models.",
    ),
)


def _ask(rng: random.Random, topic: Topic) -> tuple[str, list[str], tuple[str, ...]]:
    """A kind of question that the topic can answer: its name, its patterns, the answers."""
    kinds = [("what", WHAT, topic.what, 4.0)]
    if topic.why:
        kinds.append(("why", WHY, topic.why, 2.0))
    else:
        kinds.append(("what", WHY, topic.what, 0.4))
    if topic.how:
        kinds.append(("how", HOW, topic.how, 2.0))
    else:
        kinds.append(("what", HOW, topic.what, 0.4))
    if topic.stands:
        kinds.append(("stands", STANDS, (topic.stands,), 1.0))
    if topic.maker:
        kinds.append(("maker", MAKER, (topic.maker,), 0.8))
    kind, patterns, answers, _ = rng.choices(kinds, [k[3] for k in kinds])[0]
    for usual, broad in ((WHAT, BROAD_WHAT), (WHY, BROAD_WHY), (HOW, BROAD_HOW)):
        if patterns is usual and broadly(rng):
            patterns = broad
    return kind, patterns, answers


def _named(rng: random.Random, topic: Topic, kind: str) -> str:
    return topic.names[0].removeprefix("a ").removeprefix("an ") if kind == "stands" else rng.choice(topic.names)


def topic_turn(rng: random.Random) -> tuple[Typed, str, tuple[Topic, str]]:
    """A question on a topic and its answer; what was told comes third, for a "tell me more" that may follow."""
    topic = rng.choices(TOPICS, [t.weight for t in TOPICS])[0]
    kind, patterns, answers = _ask(rng, topic)
    return user(rng, patterns, {"x": _named(rng, topic, kind)}), say(rng, list(answers)), (topic, kind)


def more_turn(rng: random.Random, told: tuple[Topic, str]) -> tuple[Typed, str, tuple[Topic, str]] | None:
    """A follow-up on the topic just told ("why?", "how does it work?", "tell me more"), or None when nothing is left to say."""
    topic, kind = told
    choices = []
    if topic.why and kind != "why":
        choices.append(
            (
                "why",
                [
                    "why?",
                    "why is [that|it] [useful|good|important]?",
                    "why [would I|do people|should I] use [it|that]?",
                    "what is it [good|used] for?",
                    "why does [it|that] matter?",
                ],
                topic.why,
            )
        )
    if topic.how and kind != "how":
        choices.append(
            (
                "how",
                [
                    "how?",
                    "how does [it|that] work?",
                    "[and|but] how does [it|that] [actually|] work?",
                    "how [so|come]?",
                    "how is that done?",
                ],
                topic.how,
            )
        )
    if topic.maker and kind != "maker":
        choices.append(
            (
                "maker",
                ["who [made|created|develops|built|invented] [it|that]?", "who is behind [it|that]?"],
                (topic.maker,),
            )
        )
    rest = [
        (k, answers)
        for k, answers in (("how", topic.how), ("why", topic.why), ("what", topic.what))
        if answers and k != kind
    ]
    if rest:
        k, answers = rest[0]
        more = ["[tell me more|more|say more|go on|can you say more|more please|continue|elaborate|anything else|what else]", "[can you|could you|please] [tell me more|explain more|elaborate|go deeper|give more detail][| about it| about that]?",
                "[I'd like to know more|interesting, tell me more|tell me more about it|what else can you tell me|I still don't understand][.|]"]  # fmt: skip
        choices.append((k, more, answers))
    if not choices:
        return None
    kind, patterns, answers = rng.choice(choices)
    if broadly(rng):
        patterns = [FOLLOWING + pattern for pattern in patterns]
    return user(rng, patterns), say(rng, list(answers)), (topic, kind)


def compare_turn(rng: random.Random) -> tuple[Typed, str]:
    """The difference between two topics."""
    first, second, answer = rng.choice(PAIRS)
    x, y = (first, second) if rng.random() < 0.5 else (second, first)
    return user(rng, COMPARE, {"x": rng.choice(x.names), "y": rng.choice(y.names)}), answer
