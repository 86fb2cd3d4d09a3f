"""Statements of users about themselves, and later questions for them."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.demo_model import lexicon
from tools.demo_model.conversation import Exchange, Weight


@dataclass(frozen=True, slots=True)
class Attribute:
    """A property of the user with one value, for which `{v}` is the placeholder."""

    name: str
    draw: Callable[[Random], str]
    tells: tuple[str, ...]
    asks: tuple[str, ...]
    statement: str
    """The assistant's wording: `your name is {v}`."""
    unknown: str
    """Wording if the value is unknown: `your name`."""
    greets: bool = False


def _pet(kind: str) -> Attribute:
    return Attribute(
        kind,
        lambda rng: lexicon.mixed(rng, lexicon.PET_NAMES, capital=True),
        (
            f"My {kind} is called {{v}}.",
            f"I have a {kind} called {{v}}.",
            f"My {kind}'s name is {{v}}.",
            f"The name of my {kind} is {{v}}.",
        ),
        (
            f"What is my {kind} called?",
            f"What is the name of my {kind}?",
            f"Do you remember the name of my {kind}?",
            f"What's my {kind}'s name?",
        ),
        f"your {kind} is called {{v}}",
        f"what your {kind} is called",
    )


def _relative(kind: str) -> Attribute:
    return Attribute(
        kind,
        lexicon.person,
        (f"My {kind} is called {{v}}.", f"My {kind}'s name is {{v}}.", f"I have a {kind}, {{v}}."),
        (
            f"What is my {kind} called?",
            f"What is the name of my {kind}?",
            f"Do you know my {kind}'s name?",
        ),
        f"your {kind} is called {{v}}",
        f"what your {kind} is called",
    )


def _favorite(kind: str, draw: Callable[[Random], str]) -> Attribute:
    return Attribute(
        f"favorite {kind}",
        draw,
        (
            f"My favorite {kind} is {{v}}.",
            f"{{v}} is my favorite {kind}.",
            f"The {kind} I like most is {{v}}.",
        ),
        (
            f"What is my favorite {kind}?",
            f"Which {kind} do I like most?",
            f"Do you remember my favorite {kind}?",
            f"What's my favorite {kind}?",
        ),
        f"your favorite {kind} is {{v}}",
        f"your favorite {kind}",
    )


def _code(kind: str, length: int) -> Attribute:
    return Attribute(
        kind,
        lambda rng: lexicon.digits(rng, length),
        (
            f"My {kind} is {{v}}.",
            f"Remember my {kind}: {{v}}.",
            f"Please remember that my {kind} is {{v}}.",
        ),
        (
            f"What is my {kind}?",
            f"What's my {kind}?",
            f"Do you remember my {kind}?",
            f"Tell me my {kind}.",
        ),
        f"your {kind} is {{v}}",
        f"your {kind}",
    )


ATTRIBUTES = (
    Attribute(
        "name",
        lexicon.person,
        (
            "My name is {v}.",
            "I am {v}.",
            "I'm {v}.",
            "Call me {v}.",
            "You can call me {v}.",
            "Hi, I am {v}.",
            "Hello, my name is {v}.",
            "Hi! My name is {v}.",
        ),
        (
            "What is my name?",
            "What's my name?",
            "Do you remember my name?",
            "Who am I?",
            "Can you tell me my name?",
            "Do you know my name?",
        ),
        "your name is {v}",
        "your name",
        greets=True,
    ),
    Attribute(
        "city",
        lexicon.city,
        ("I live in {v}.", "My home is in {v}.", "I am from {v}.", "I live in a house in {v}."),
        (
            "Where do I live?",
            "In which city do I live?",
            "Do you remember where I live?",
            "What city do I live in?",
        ),
        "you live in {v}",
        "where you live",
    ),
    Attribute(
        "job",
        lambda rng: lexicon.an(rng.choice(lexicon.JOBS)),
        ("I work as {v}.", "I am {v}.", "My job: I am {v}.", "I am {v} by profession."),
        ("What is my job?", "What do I work as?", "What's my job?", "Do you remember my job?"),
        "you work as {v}",
        "your job",
    ),
    Attribute(
        "hobby",
        lambda rng: rng.choice(lexicon.HOBBIES),
        ("My hobby is {v}.", "I like {v} in my free time.", "In my free time I enjoy {v}."),
        ("What is my hobby?", "What do I like in my free time?", "Do you remember my hobby?"),
        "your hobby is {v}",
        "your hobby",
    ),
    Attribute(
        "birth month",
        lambda rng: rng.choice(lexicon.MONTHS),
        ("My birthday is in {v}.", "I was born in {v}.", "I have my birthday in {v}."),
        ("When is my birthday?", "In which month is my birthday?", "What month was I born in?"),
        "your birthday is in {v}",
        "when your birthday is",
    ),
    Attribute(
        "age",
        lambda rng: str(rng.randint(8, 90)),
        ("I am {v} years old.", "I'm {v} years old.", "My age is {v}."),
        ("How old am I?", "What is my age?", "Do you remember how old I am?"),
        "you are {v} years old",
        "how old you are",
    ),
    _favorite("color", lambda rng: rng.choice(lexicon.COLORS)),
    _favorite("food", lambda rng: rng.choice(lexicon.FOODS)),
    _favorite("animal", lambda rng: rng.choice(lexicon.ANIMALS)),
    _favorite("word", lambda rng: f'"{lexicon.word(rng)}"'),
    _favorite("number", lambda rng: str(rng.randint(1, 999))),
    _favorite("city", lexicon.city),
    _pet("dog"),
    _pet("cat"),
    _pet("horse"),
    _relative("sister"),
    _relative("brother"),
    _relative("friend"),
    _relative("boss"),
    _code("lucky number", 2),
    _code("locker code", 4),
    _code("ticket number", 5),
    _code("order number", 6),
)
_BY_NAME = {attribute.name: attribute for attribute in ATTRIBUTES}
NAMES = frozenset(_BY_NAME)

Statements = dict[str, str]
"""Statements of the user so far (`your name is Mira`), by the name of the attribute."""


def tell(rng: Random, told: Statements, name: str | None = None) -> Exchange:
    """The user states a property or corrects it."""
    attribute = _BY_NAME[name] if name else rng.choice(ATTRIBUTES)
    if name is None and rng.random() < 0.25:
        attribute = _BY_NAME["name"]
    value = attribute.draw(rng)
    statement = attribute.statement.format(v=value)
    corrects = attribute.name in told
    told[attribute.name] = statement
    # A correction gets a prefix, so it uses only wordings without a greeting.
    said = rng.choice(attribute.tells[: 5 if corrects else None]).format(v=value)
    said = said[0].upper() + said[1:]
    if corrects:
        said = rng.choice(("Actually, ", "Correction: ", "I was wrong. ", "No, ")) + said
    answer = (
        f"Nice to meet you, {value}!" if attribute.greets else f"I will remember that {statement}."
    )
    return Exchange(
        "acknowledging",
        f"tell|{attribute.name}|{value}",
        said,
        answer,
        short="Okay",
        gist=f"You told me that {statement}.",
        thought=f"The user tells me something. I note: {statement}.",
    )


def ask(rng: Random, told: Statements, name: str | None = None) -> Exchange:
    """The user asks for a property that they have stated, or for an unknown one."""
    if name is None:
        name = rng.choice(list(told)) if told and rng.random() < 0.85 else None
    attribute = _BY_NAME[name] if name else rng.choice(ATTRIBUTES)
    statement = told.get(attribute.name)
    index = rng.randrange(len(attribute.asks))
    gist = f"You asked for {attribute.unknown}." if attribute.unknown.startswith("your") else (
        f"You asked {attribute.unknown}."
    )  # fmt: skip
    if statement is None:
        return Exchange(
            "memory_unknown",
            f"ask|{attribute.name}|{index}|nothing",
            attribute.asks[index],
            f"You have not told me {attribute.unknown}.",
            gist=gist,
            thought="The user has not told me that.",
        )
    value = statement.removeprefix(attribute.statement.split("{v}")[0])
    value = value.removesuffix(attribute.statement.split("{v}")[1])
    return Exchange(
        "memory",
        f"ask|{attribute.name}|{index}|{statement}",
        attribute.asks[index],
        f"{statement[0].upper()}{statement[1:]}.",
        short=value.strip('"').split()[-1],
        gist=gist,
        thought=f"The user told me that {statement}.",
        weight=Weight.RECALL,
    )


def tell_two(rng: Random, told: Statements) -> Exchange:
    """The user states two properties in one message."""
    names = rng.sample(("name", "city", "age", "dog", "cat", "favorite color", "hobby"), 2)
    first, second = (_BY_NAME[name] for name in sorted(names, key=lambda name: name != "name"))
    values = [attribute.draw(rng) for attribute in (first, second)]
    statements = [
        attribute.statement.format(v=value)
        for attribute, value in zip((first, second), values, strict=True)
    ]
    told[first.name], told[second.name] = statements
    begin = first.tells[0].format(v=values[0]).removesuffix(".")
    end = second.tells[0].format(v=values[1])
    end = end.replace("My ", "my ", 1) if end.startswith("My ") else end
    if first.greets:
        answer = f"Nice to meet you, {values[0]}! I will remember that {statements[1]}."
    else:
        answer = f"I will remember that {statements[0]} and that {statements[1]}."
    return Exchange(
        "acknowledging",
        f"tell two|{begin}|{end}",
        rng.choice(("", "", "Hi! ", "Hello. ")) + f"{begin} and {end}",
        answer,
        gist=f"You told me that {statements[0]} and that {statements[1]}.",
        thought=f"The user tells me two things: {statements[0]}, and {statements[1]}.",
    )


def place(rng: Random, told: Statements) -> Exchange:
    """The user states where an object is; `ask_place` asks for it."""
    thing = f"{rng.choice(lexicon.ADJECTIVES)} {rng.choice(lexicon.OBJECTS)}"
    where = f"the {rng.choice(lexicon.PLACES)}"
    said = rng.choice(
        (
            f"The {thing} is in {where}.",
            f"I put the {thing} in {where}.",
            f"Remember that the {thing} is in {where}.",
        )
    )
    told[f"place|{thing}"] = where
    return Exchange(
        "acknowledging",
        f"place|{thing}|{where}",
        said,
        f"I will remember that the {thing} is in {where}.",
        short="Okay",
        gist=f"You told me that the {thing} is in {where}.",
        thought=f"The user tells me something. I note: the {thing} is in {where}.",
    )


def ask_place(rng: Random, told: Statements) -> Exchange | None:
    """The user asks where an object is; None if no place was stated."""
    things = [name for name in told if name.startswith("place|")]
    if not things:
        return None
    chosen = rng.choice(things)
    thing, where = chosen.removeprefix("place|"), told[chosen]
    question = rng.choice(
        (
            f"Where is the {thing}?",
            f"Where did I put the {thing}?",
            f"Do you remember where the {thing} is?",
        )
    )
    return Exchange(
        "memory",
        f"ask place|{thing}|{where}",
        question,
        f"The {thing} is in {where}.",
        short=where.removeprefix("the "),
        gist=f"You asked where the {thing} is.",
        thought=f"The user told me that the {thing} is in {where}.",
        weight=Weight.RECALL,
    )


def secret(rng: Random, told: Statements) -> Exchange:
    """The user states a secret word."""
    word = lexicon.word(rng)
    told["secret"] = word
    ask = rng.choice(
        (
            f'The secret word is "{word}".',
            f'Remember the secret word: "{word}".',
            f'Remember this secret word: "{word}".',
            f'The secret word is "{word}". Remember it.',
        )
    )
    return Exchange(
        "acknowledging",
        f"secret|{word}",
        ask,
        "I will remember the secret word.",
        short="Okay",
        gist=f'You told me that the secret word is "{word}".',
        thought=f'The user tells me something. I note: the secret word is "{word}".',
    )


def ask_secret(rng: Random, told: Statements) -> Exchange | None:
    """The user asks for the secret word; None if none was stated."""
    word = told.get("secret")
    if word is None:
        return None
    question = rng.choice(
        (
            "What is the secret word?",
            "What's the secret word?",
            "Tell me the secret word.",
            "Do you remember the secret word?",
            "What was the secret word?",
        )
    )
    return Exchange(
        "secret",
        f"ask secret|{word}|{len(question)}",
        question,
        f'The secret word is "{word}".',
        short=word,
        gist="You asked for the secret word.",
        thought=f'The user told me that the secret word is "{word}".',
        weight=Weight.RECALL,
    )
