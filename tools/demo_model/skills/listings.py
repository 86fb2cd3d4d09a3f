"""Lists of facts in the system prompt or in the message, and questions about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tools.demo_model import lexicon
from tools.demo_model.conversation import Exchange, Weight


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a list, and a question about it with its answer and its answer in one word."""

    text: str
    asked: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A list with a heading. `missing` generates a question that the list does not answer."""

    heading: str
    lines: tuple[Line, ...]
    missing: Callable[[Random], tuple[str, str]]

    @property
    def text(self) -> str:
        """Return the heading and the lines."""
        return "\n".join((self.heading, *(f"- {line.text}" for line in self.lines)))


def listing(rng: Random, num_lines: int) -> Listing:
    """Generate a list of a random kind with about 20 tokens per line."""
    kind = rng.choice((_staff, _stock, _things, _topics))
    lines: dict[str, Line] = {}
    while len(lines) < num_lines:
        subject, line = kind(rng)
        lines.setdefault(subject, line)
    names = frozenset(lines)
    heading = rng.choice(_HEADINGS[kind.__name__])
    return Listing(heading, tuple(lines.values()), _missing(kind, names))


def ask_listing(
    rng: Random, known: Listing, lines: Sequence[Line] | None = None, missing: float = 0.07
) -> Exchange:
    """Ask about a line of the list or, occasionally, about something that is not in it."""
    if lines is None and rng.random() < missing:
        question, answer = known.missing(rng)
        return Exchange(
            "context_missing",
            f"missing|{question}",
            question,
            answer,
            gist="You asked for something that is not in the list.",
            thought="That is not in the list.",
        )
    line = rng.choice(lines or known.lines)
    question, answer, short = rng.choice(line.asked)
    return Exchange(
        "context",
        f"context|{question}|{answer}",
        question,
        answer,
        short=short,
        gist=f"You asked: {question}",
        thought=f"The list says: {line.text}",
        weight=Weight.RECALL,
    )


def in_message(rng: Random) -> Exchange:
    """Ask about a list that is in the same message."""
    known = listing(rng, rng.randint(2, 10))
    asked = ask_listing(rng, known)
    form = rng.choice(("{l}\n\n{q}", "{l}\n\nQuestion: {q}", "{q}\n\n{l}", "Use this:\n{l}\n\n{q}"))
    return Exchange(
        asked.skill,
        asked.key,
        form.format(l=known.text, q=asked.ask),
        asked.answer,
        short=asked.short,
        gist=asked.gist,
        thought=asked.thought,
        weight=asked.weight,
    )


_HEADINGS = {
    "_staff": ("Our people:", "Staff:", "These people work here:", "The staff list:"),
    "_stock": ("Our stock:", "What we have in stock:", "The warehouse holds:", "Inventory:"),
    "_things": ("Facts:", "You know these facts:", "Know this:", "These facts are true:"),
    "_topics": ("Company handbook:", "House rules:", "Information:", "Answer from these notes:"),
}
_KIND_OF_TOPIC = (
    "opening hours;closing time;return period;shipping cost;contact person;office city;dress color;"
    "lunch place;parking place;quiet hours;team name;project name;access code;start day;"
    "meeting day;holiday month;room number;desk number;printer name;garden day;coffee price;"
    "travel limit;training month;backup day;wifi name;wifi code;fire exit;visitor desk;"
    "phone number;speed limit;tea time;membership fee;ticket price;newsletter name"
).split(";")


def _staff(rng: Random) -> tuple[str, Line]:
    name, job = lexicon.person(rng), rng.choice(lexicon.JOBS)
    where, phone = lexicon.city(rng), lexicon.digits(rng, 4)
    return name, Line(
        f"{name} is {lexicon.an(job)} in {where}, phone {phone}.",
        (
            (
                f"What is the phone number of {name}?",
                f"The phone number of {name} is {phone}.",
                phone,
            ),
            (
                f"Which phone number does {name} have?",
                f"The phone number of {name} is {phone}.",
                phone,
            ),
            (f"Where does {name} work?", f"{name} works in {where}.", where),
            (f"In which city does {name} work?", f"{name} works in {where}.", where),
            (f"What is the job of {name}?", f"{name} is {lexicon.an(job)}.", job),
            (f"What does {name} do?", f"{name} is {lexicon.an(job)}.", job),
        ),
    )


def _stock(rng: Random) -> tuple[str, Line]:
    item = f"{rng.choice((*lexicon.COLORS, *lexicon.ADJECTIVES))} {rng.choice(lexicon.OBJECTS)}"
    count, price = rng.randint(2, 99), rng.randint(2, 99)
    shelf = rng.choice("ABCDEFGH") + str(rng.randint(1, 9))
    return item, Line(
        f"{item}: {count} pieces, shelf {shelf}, {price} dollars",
        (
            (f"How many pieces of the {item} do we have?", f"We have {count} pieces.", str(count)),
            (f"How many pieces are there of the {item}?", f"We have {count} pieces.", str(count)),
            (f"On which shelf is the {item}?", f"The {item} is on shelf {shelf}.", shelf),
            (f"Where is the {item}?", f"The {item} is on shelf {shelf}.", shelf),
            (f"How much is the {item}?", f"The {item} costs {price} dollars.", str(price)),
            (f"What does the {item} cost?", f"The {item} costs {price} dollars.", str(price)),
        ),
    )


def _things(rng: Random) -> tuple[str, Line]:
    thing = f"{rng.choice(lexicon.ADJECTIVES)} {rng.choice(lexicon.OBJECTS)}"
    if rng.random() < 0.5:
        owner = lexicon.person(rng)
        return thing, Line(
            f"The {thing} belongs to {owner}.",
            (
                (f"Who owns the {thing}?", f"The {thing} belongs to {owner}.", owner),
                (f"To whom does the {thing} belong?", f"The {thing} belongs to {owner}.", owner),
            ),
        )
    where = rng.choice(lexicon.PLACES)
    return thing, Line(
        f"The {thing} is in the {where}.",
        (
            (f"Where is the {thing}?", f"The {thing} is in the {where}.", where),
            (f"Where can I find the {thing}?", f"The {thing} is in the {where}.", where),
        ),
    )


def _topics(rng: Random) -> tuple[str, Line]:
    topic = rng.choice(_KIND_OF_TOPIC)
    if rng.random() < 0.6:
        topic += f" of the {rng.choice(lexicon.PLACES)}"
    value = rng.choice(
        (
            lexicon.person(rng),
            lexicon.city(rng),
            lexicon.digits(rng, rng.randint(2, 5)),
            rng.choice(lexicon.DAYS),
            rng.choice(lexicon.MONTHS),
        )
    )
    answer = f"The {topic}: {value}."
    return topic, Line(
        f"{topic}: {value}",
        (
            (f"What is the {topic}?", answer, value),
            (f"Tell me the {topic}.", answer, value),
            (f"Do you know the {topic}?", answer, value),
        ),
    )


def _missing(
    kind: Callable[[Random], tuple[str, Line]], names: frozenset[str]
) -> Callable[[Random], tuple[str, str]]:
    def make(rng: Random) -> tuple[str, str]:
        while True:
            subject, line = kind(rng)
            if subject not in names:
                name = subject if kind is _staff else f"The {subject}"
                return rng.choice(line.asked)[0], f"{name} is not in the list."

    return make
