"""Questions about everything else, to which the honest answer is "I don't know".

Heads and nouns combine freely, and many nouns are rare or made up, so that the models recognise unknown things by their absence from the data.
"""

# ruff: noqa: E501, SIM905 (patterns and word lists read best on one line)

import random

from . import words
from .phrasing import Typed, expand, say, user

COUNTRIES = """France Spain Italy Germany Japan China India Brazil Canada Mexico Kenya Norway Poland Peru Egypt Turkey Greece Portugal Ireland Australia Sweden
Finland Iceland Chile Cuba Nepal Mongolia Vietnam Thailand Ghana Nigeria Morocco Ukraine Hungary Austria Belgium Argentina Bolivia Russia""".split()
SCIENCE = """photosynthesis gravity mitosis evolution entropy relativity electricity magnetism osmosis radiation inflation capitalism democracy philosophy
psychology algebra calculus trigonometry geometry chemistry biology physics astronomy geology economics blockchain bitcoin cryptography quantum-mechanics
dark-matter black-holes DNA RNA protein enzymes vitamins insulin cholesterol diabetes cancer malaria influenza asthma migraine allergies vaccines
antibiotics aspirin ibuprofen volcanoes earthquakes tsunamis tornadoes glaciers dinosaurs fossils mammals bacteria viruses fungi atoms electrons neutrons
lasers radar sonar satellites rockets nuclear-fusion uranium carbon oxygen helium plastic steel concrete glass cotton wool silk yoga meditation karma
Buddhism stoicism feudalism communism inflation taxes mortgages insurance copyright contracts patents divorce marriage adoption immigration voting""".split()
LANGUAGES = "Rust Java C++ JavaScript Haskell Perl Ruby Go Swift Kotlin COBOL Fortran PHP SQL HTML CSS Bash Lisp Scala assembly C Pascal".split()
TOOLS = "Docker Kubernetes Excel Photoshop Linux Windows Git React Django Kafka Redis MongoDB Postgres Terraform Ansible TensorFlow Spark WordPress Blender Unity AWS Azure Android macOS Minecraft Netflix Spotify Instagram TikTok Tesla Amazon Microsoft Apple Toyota Samsung Nokia NASA FIFA".split()
SPEECH = "French Spanish German Italian Japanese Chinese Russian Arabic Portuguese Dutch Swedish Polish Greek Turkish Hindi Korean Latin Swahili".split()
PERSONS = """Einstein Newton Napoleon Caesar Cleopatra Shakespeare Mozart Beethoven Picasso Darwin Tesla Edison Columbus Gandhi Mandela Lincoln Washington
Churchill Aristotle Plato Socrates Galileo Kepler Curie Turing Bach Chopin Rembrandt Michelangelo Hemingway Tolstoy Goethe Dante Homer Confucius Messi
Ronaldo Federer Beyonce Madonna Elvis Obama Trump Putin Macron Merkel""".split()
EVENTS = [
    "the world cup",
    "the last election",
    "the Olympics",
    "the Super Bowl",
    "world war two",
    "the French revolution",
    "the moon landing",
    "the Oscars",
    "the war",
    "the cold war",
    "Wimbledon",
    "the Tour de France",
    "the battle of Waterloo",
    "the elections",
    "the game last night",
    "the champions league",
    "the Nobel prize",
]
DISHES = "pizza lasagna soup bread pancakes curry sushi omelette risotto paella cake pie stew chili pasta rice cookies brownies jam cheese mayonnaise tofu lentils".split()
TITLES = [
    "Hamlet",
    "Don Quixote",
    "the Bible",
    "Moby Dick",
    "War and Peace",
    "Harry Potter",
    "Star Wars",
    "Titanic",
    "the Mona Lisa",
    "the Odyssey",
    "Faust",
    "Dracula",
    "Frankenstein",
    "Macbeth",
]

HEADS: list[tuple[float, list[str]]] = [
    (3.0, ["[what is|what's|what exactly is|tell me what is|do you know what is] [the|] [capital|population|currency|flag|president|prime minister|king|language|history|area|climate|highest mountain|longest river|biggest city|national anthem|main export|national dish|oldest city|religion] of {country}?",
           "where [is|exactly is|can I find] {country}?", "who [is|was] the [president|prime minister|king|queen|chancellor|emperor|first president] of {country}?", "how many people live in {country}?", "[is {country} in Europe|what language do they speak in {country}|how far is {country} from {city}|how big is {country}|is {country} a nice place|what should I see in {country}]?", "[tell me about|what do you know about|describe] {country}[.|?]", "capital of {country}?"]),
    (4.0, ["[what is|what's|what are|explain|define|describe|tell me about|what do you know about|what does|do you know|can you explain|how do you explain|could you explain|I'd like to know about|I want to learn about|give me a definition of|what do you think about|what is your opinion on] [{science}|{science}|{noun}|{made}|a {noun}|the {noun}|a {made}|{Made}|{tool}|{noun} and {noun2}|{made} {noun}]?",
           "[{made}|{science}|{tool}|{Made}]?", "[why|how] [is|are|does|do] {science} [important|work|happen|exist|dangerous|useful|made|form]?", "[how does|how do|why does|why is|what causes|who invented|who discovered|when was|what is the use of|what is the history of|what is the opposite of] [a {noun}|the {noun}|{science}|{made}] [work|made|invented|happen|important|]?",
           "what does {made} [mean|do|stand for]?", "what does [the word|] {science} mean?", "[what is|what's] a {made}?", "[explain|describe] {made}[.|]", "who [made|invented|wrote|created|discovered] {science}?", "what is the difference between [{science} and {noun}|a {noun} and a {noun2}|{made} and {made2}|{tool} and {tool2}|{country} and {country2}]?"]),
    (2.0, ["who [is|was] {person}?", "who [is|was] {person} {Made}?", "[when was|where was|how did|when did|why did|how old was|what did] {person} [born|die|do|invent|live|write|become famous|discover]?", "[tell me about|what do you know about] {person}[.|?]", "who is {Made}[| {Made2}]?", "[is {person} still alive|what is {person} famous for|who was {person}'s wife|how tall is {person}]?", "do you know [who {person} is|{person}]?"]),
    (1.5, ["who won {event}[| in {year}| last year| this year]?", "when [was|did|is] {event}[| start| end| take place| happen]?", "[what happened in|what was the most important event of|who ruled in|tell me about] {year}?", "[what caused|who fought in|where was|how did] {event}[| begin| end]?", "what was the score of [the game|the match|the final][ yesterday| last night|]?"]),
    (2.0, ["[how do I|how do you|how can I|how to|can you tell me how to|teach me how to|what is the best way to|how should I|explain how to] [cook|bake|make|prepare] {dish}?", "[recipe for {dish}|give me a recipe for {dish}|what is a good recipe for {dish}|how long do I boil {dish}|what goes into {dish}|how many calories are in {dish}|is {dish} healthy|what wine goes with {dish}]?", "[what should I|what can I] [cook|eat|make|have] for [dinner|lunch|breakfast|tonight]?"]),
    (2.5, ["[what is|what's|how is|tell me|do you know] the weather[| like| today| tomorrow| in {city}| outside| now|  forecast]?", "[will it|is it going to|is it] [rain|snow|be sunny|be hot|raining|cold] [today|tomorrow|outside|in {city}|]?", "[what time|what day|what date|what year|what month|which day|which year] is it[ now| today| in {city}|]?", "[what's the time|what is today's date|what is the date today|what is the current time|do you know the time|how late is it]?", "[what's in the news|what happened today|any news|what is the latest news|what's new in politics|what are the headlines|what's on TV tonight|who is the current president|what is the price of {tool} stock|what is the stock price of {tool}|how is the stock market|what does a {noun} cost|how much does a {noun} cost|what is the exchange rate]?", "[temperature in {city}|how warm is it in {city}|is it hot in {city} now]?"]),
    (2.0, ["[write|can you write|give me|show me|how do I write|help me write|code] [a function|a program|code|a script|a loop|a class|a website|hello world|a sorting algorithm|an app] in {lang}[| that sorts a list| to read a file| that prints numbers|?]", "[how do I|how can I|how to] [install|use|learn|run|configure|update|remove|fix] {tool}?", "[how do I|how can I] [sort a list|read a file|reverse a string|open a file|connect to a database|parse JSON|declare a variable] in {lang}?", "what is {lang}?", "[is {lang} better than {lang2}|should I learn {lang}|why is {lang} so slow|what is a pointer in {lang}|which is better, {lang} or {lang2}]?"]),
    (2.0, ["[translate|how do you say|how do I say|what is|say] [{noun}|hello|good morning|I love you|{noun} and {noun2}|thank you] [in|into|to] {speech}[?|]", "[how do you spell {noun}|what rhymes with {noun}|what is the plural of {noun}|what is a synonym for {noun}|what does {noun} mean in {speech}]?", "[correct my grammar|summarize this text|proofread my essay|write an essay about {noun}|write an email to my boss|write a letter to {Made}|write a song about {noun}|write a speech about {science}|make a list of {noun}s|summarize {title}]"]),
    (2.0, ["[should I|how do I|how can I|is it good to|what happens if I|is it safe to|how often should I|why can't I] [sell my house|quit my job|lose weight|sleep better|invest money|buy a car|learn the piano|fix my bicycle|repair a {noun}|clean a {noun}|find a job|make friends|paint a {noun}|buy a {noun}|get rich|stop smoking|run faster|grow tomatoes|train my dog|tie a tie|pay taxes|build a {noun}|eat a {noun}|wash a {noun}]?", "[my head hurts, what should I do|I have a fever, what can I do|what medicine helps against {science}|is {science} dangerous|is {science} contagious|what are the symptoms of {science}|can you give me medical advice|can you give me legal advice|can I sue my neighbour|what should I wear today|what is the meaning of life|is there a god|is there life on Mars|which phone should I buy]?", "[recommend|suggest|can you recommend|do you know] [a|a good] [film|book|restaurant|hotel|song|movie|game|doctor|present|TV show|podcast][| in {city}]?"]),
    (2.5, ["[how tall|how high|how old|how heavy|how deep|how long|how fast|how big|how far|how many|how much|how hot] [is|are] [the|a] [{noun}|{animal}|{made}|Eiffel tower|sun|moon|universe|Everest|Nile|{noun} in {city}]?", "[how many|what] [legs|teeth|eyes|bones|hearts] does a {animal} have?", "[what|where|when|how long|why] [do|does] [{animal}s|a {animal}|cats|birds|whales] [eat|sleep|live|fly|swim|sing|migrate|hunt|bark]?", "[why is|how far is|what colour is] the [sky|sea|grass|sun|moon|snow] [blue|salty|green|hot|round|white|]?", "[how many {noun}s are there in|how many days are in|what is the distance to|how many hours are in] [a {noun}|the world|{city}|a year|a month|the moon]?", "[can {animal}s|do {animal}s] [swim|fly|see in the dark|talk|have teeth|lay eggs|live in water]?", "what is the [largest|smallest|fastest|oldest|best|tallest|deepest|cheapest|most expensive|longest] [{animal}|{noun}|{made}|ocean|planet|country|building|bridge] [in the world|ever|on earth|]?", "are {animal}s [mammals|dangerous|intelligent|good pets|nocturnal]?"]),
    (1.2, ["who [wrote|painted|directed|composed|is the author of|stars in|is in] [{title}|{title}|{Made}|the book {Made}]?", "[what is {title} about|when was {title} written|have you read {title}|have you seen {title}|how does {title} end|tell me about {title}]?", "[what is the chemical formula of|what is the boiling point of|what is the melting point of|what is the atomic number of|what is the symbol for] [water|gold|salt|iron|{science}|oxygen|{made}]?"]),
    (0.8, ["[where|when|why|who|how] [is|was|did|does|can|should|will] [{made}|{Made}|the {made}|a {noun}|my {noun}|the {noun}|you {made}|they {noun}] [{made2}|go|come|stop|end|be|happen|]?", "{made} {made2} {noun}?", "[where is my {noun}|who stole my {noun}|where can I buy a {noun}|when does the {noun} open|what happened to the {noun}|why is the {noun} {adjective}|who lives in the {noun}|what is inside a {noun}]?", "[who will win {event}|what will happen tomorrow|what am I thinking|how many fingers am I holding up|what did I eat today|what is my horoscope|guess my age|what are the lottery numbers|what is my IP address]?"]),
]  # fmt: skip
PLACE = "[shop|bank|park|school|church|station|airport|hospital|bakery|museum|zoo|library|cinema|hotel|bridge]"
ITEM = "[car|phone|bike|laptop|camera|fridge|sofa|guitar|watch|bed|coat|printer|tent|boat|house|ladder|tyre|window|lamp|lock|pipe|roof|wall|zip|button|shirt|tap|door]"
BROAD_HEADS: list[tuple[float, list[str]]] = [
    (2.0, ["how [do|can|should|would] [I|we|you|one] [change|repair|fix|clean|replace|mend|open|build|paint|remove|sell|install|wash|use|store|assemble|carry|choose] [a|an old|the|my|a broken|a flat|a dirty|a new|a heavy|your] [{noun}|{item}|{item}]?", "how [do|can|should] I [get|travel|go|drive|fly|come] from {city} to {city2}[| by train| by bus| by car| quickly]?", "[when|where|at what time] [does|do|will] the [next |last |first |] [train|bus|plane|ferry|tram|film|match|game|shop|concert|show] [leave|arrive|start|open|close|end|go][| to {city}| today| tomorrow]?", "[where|how] [can|do|could] I [find|buy|get|rent|book|order] [a|a cheap|a good|some|the best] [{noun}|{item}|{dish}|ticket|room|doctor|table|taxi][| in {city}| near me| online]?", "[what|how much] [does|do|would] [a|a new|a used|the|a good] [{item}|{noun}|flight to {city}|ticket to {city}|house in {city}|kilo of {dish}] cost?"]),
    (2.0, ["[what|which|who] is the [best|greatest|worst|most famous|richest|strongest|oldest|biggest|cheapest|fastest|prettiest|most popular|most expensive|second largest] [football team|band|car|singer|country|phone|player|actor|writer|team|colour|city|animal|pet|name for a dog|name for a cat|book|film|company|school|painter|river|island|lake|mountain|bank|{noun}|{item}][ in {country}| in the world| of all time| right now| ever|]?", "who [is|was] the [first|last|current|youngest|next|third|most famous] [woman in space|president|king of {country}|queen of {country}|mayor of {city}|pope|champion|owner of {tool}|boss of {tool}|inventor of the {noun}|emperor|astronaut|winner of {event}]?", "[how many|what number of] [people|cars|islands|lakes|languages|stars|players|continents|states|oceans|trees|bones|books|cities|planets|gods|kings] [are there|live|exist|are] [in {country}|in {city}|in the world|on earth|in a team|in the sky|in the human body|there]?", "[how much|how many] [do|does] [{noun}s|a {animal}|{animal}s|a baby|people|cars|the earth|the moon|a {item}] [weigh|cost|eat|drink|sleep|live|need]?"]),
    (2.0, ["[who|when|where|why|how] [was|did|were] [{person}|{Made}|{title}|the Romans|the Vikings|the dinosaurs|the {noun}|{country}|the wall|the pyramids|{tool}] [born|built|invented|die|founded|made|begin|end|win|written|discovered|married|famous|fall|disappear]?", "in [which|what] [year|country|city|century] [was|did|were|is] [{person}|{title}|{event}|{tool}|the {noun}|{city}|the {made}] [born|happen|founded|written|located|invented|begin|built]?", "what is {person} [known for|famous for|doing now|called in real life]?", "[what|which] [language|food|religion|money|sport|music|clothes] [do|did] [people|they|the Romans|kids] [speak|eat|have|use|play|like|wear] in [{country}|{city}]?", "[is|are|was|were] [{country}|{person}|{science}|the earth|{title}|the sun|{animal}s|whales|tomatoes] [bigger than {country2}|older than {person}|true|flat|a star|fish|good|dead|rich|made of {noun}|poisonous|healthy|expensive|a fruit|real]?"]),
    (2.0, ["[why|how] [do|does|is|are|did] [{animal}s|the sky|the moon|people|we|leaves|birds|stars|{noun}s|cats|babies|volcanoes|onions|planes|magnets|ships|{science}|the sea|ice|clouds|rainbows] [fly|fall|change colour|cry|sleep|float|burn|yawn|shine|work|blue|so small|so loud|move|make us cry|form|grow|salty|dream|erupt|smell]?", "what [happens|would happen|happened] [if|when] [I eat a {noun}|the sun dies|you mix {science} and {noun}|a {animal} bites me|it rains|we stop sleeping|the moon disappears|{person} comes back|you die|water boils]?", "what [makes|causes|is inside|is under|is behind|comes after|is above|lives in] [the {noun}|a {animal}|{science}|the moon|a {item}|the sea|clouds|rain|a {made}|an atom]?", "[what|which] [colour|size|shape|kind|brand|type] [is|are|of {item} is|of {noun} is] [a {animal}|the {noun}|{science}|best|good|an elephant|Mars|a banana|the flag of {country}]?", "[can|could|do|will] [{animal}s|humans|plants|fish|robots|dogs|we|you|people] [ever |] [fly|breathe under water|live on Mars|see {science}|think|talk to each other|eat {dish}|feel pain|travel in time|live for 200 years|understand {noun}s]?"]),
    (2.0, ["[please |can you |could you |] [book|reserve|order|buy|find|get|rent|cancel|arrange] [me |] [a table|a flight to {city}|a hotel|a taxi|a pizza|two tickets|some {dish}|a doctor|a {item}|a {noun}|train tickets|a room in {city}][ for tonight| for me| for two| tomorrow|][.|?|]", "[please |can you |could you |] [summarize|translate|review|correct|rewrite|check|explain] [this article|my essay|the news|{title}|this sentence|this law|my contract|my letter|the rules of chess|the plot of {title}|the theory of {science}][.|?|]", "[plan|suggest|prepare|design|organise|draft] [a trip to {city}|a party|my week|a menu|a workout|a diet|a wedding|a garden|a speech|a budget|a CV|a logo|a letter to {Made}][ for me| please|][.|]", "[who|what] [will|is going to] [win|happen|be elected|cost more|come next|rise] [tomorrow|next year|in the final|in {country}|this weekend|in 2050|on Friday]?", "[what|how] [should|can|shall] I [do|say|wear|cook|buy|read|watch|give my mother|answer|tell my boss|pack|invest in|study] [today|tonight|for my birthday|at the wedding|for Christmas|in {city}|if I'm ill|when it rains|at school|against {science}]?", "where is the [nearest|next|best|closest] {place}?", "[is|are] the {place} [open|closed|far away|expensive|near here][ today| now| on Sunday|]?"]),
]  # fmt: skip
ANSWERS = [
    "I'm sorry, I don't know.",
    "I'm sorry, I don't know that. I'm only a tiny model.",
    "I don't know the answer to that.",
    "I'm sorry, I don't know anything about that.",
]
NAMED_ANSWERS = ["I'm sorry, I don't know anything about {topic}.", "I don't know anything about {topic}, sorry."]
TOPIC_SLOTS = ("science", "made", "Made", "tool", "person", "country", "title", "lang")


def unknown_turn(rng: random.Random) -> tuple[Typed, str]:
    """A question on anything else, and an answer that admits it; where a named thing is asked about, the answer may name it."""
    heads = BROAD_HEADS if words.broadly(rng) else HEADS
    patterns = rng.choices(heads, [head[0] for head in heads])[0][1]
    noun, noun2 = (
        rng.choice([rng.choice(words.THINGS), rng.choice(words.PEOPLE), rng.choice(words.ANIMALS), words.made_up(rng)])
        for _ in "ab"
    )
    values = {
        "country": words.word_or_made_up(rng, COUNTRIES, 0.2),
        "country2": rng.choice(COUNTRIES),
        "city": words.city(rng),
        "science": rng.choice(SCIENCE).replace("-", " "),
        "noun": noun,
        "noun2": noun2,
        "made": words.made_up(rng),
        "made2": words.made_up(rng),
        "Made": words.made_up(rng).capitalize() if rng.random() < 0.8 else words.made_up(rng)[:4].upper(),
        "Made2": words.made_up(rng).capitalize(),
        "tool": rng.choice(TOOLS),
        "tool2": rng.choice(TOOLS),
        "lang": rng.choice(LANGUAGES),
        "lang2": rng.choice(LANGUAGES),
        "speech": rng.choice(SPEECH),
        "person": rng.choice(PERSONS) if rng.random() < 0.7 else words.name(rng),
        "event": rng.choice(EVENTS),
        "year": str(rng.randint(1000, 2030)),
        "dish": words.word_or_made_up(rng, DISHES, 0.2),
        "animal": words.word_or_made_up(rng, words.ANIMALS, 0.1),
        "adjective": rng.choice(words.ADJECTIVES),
        "title": rng.choice(TITLES),
    }
    if values["country"] not in COUNTRIES:
        values["country"] = values["country"].capitalize()
    pattern = expand(rng, rng.choice(patterns))
    if heads is BROAD_HEADS:
        values |= {"city2": words.city(rng), "item": expand(rng, ITEM), "place": expand(rng, PLACE)}
    named = [slot for slot in TOPIC_SLOTS if "{" + slot + "}" in pattern]
    typed = user(rng, pattern, values)
    if named and pattern.count("{") == 1 and rng.random() < 0.6:
        return typed, say(rng, NAMED_ANSWERS, {"topic": typed.values[named[0]]})
    return typed, say(rng, ANSWERS)
