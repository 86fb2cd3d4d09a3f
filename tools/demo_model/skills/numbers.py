"""Arithmetic, comparison, counting and spelling; longer calculations use reasoning."""

from collections.abc import Callable
from random import Random

from tools.demo_model import lexicon
from tools.demo_model.conversation import Exchange

_OPERATIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "+": ("plus", lambda a, b: a + b),
    "-": ("minus", lambda a, b: a - b),
    "*": ("times", lambda a, b: a * b),
}
_WORDED = (
    "What is {a} {name} {b}?",
    "What's {a} {name} {b}?",
    "How much is {a} {name} {b}?",
    "Tell me what {a} {name} {b} is.",
    "Calculate {a} {name} {b}.",
)
_SIGNED = (
    "What is {a} {op} {b}?",
    "What is {a}{op}{b}?",
    "{a} {op} {b} = ?",
    "{a}{op}{b}=?",
    "Calculate {a} {op} {b}.",
    "{a} {op} {b}",
)


def arithmetic(rng: Random) -> Exchange:
    """Ask for a sum or difference up to 100, or a product of factors up to 10.

    For sums and differences, pairs of numbers are held out, in every wording. Products have to be
    memorized, so only wordings are held out.
    """
    op = rng.choice("++--*")
    a, b = _operands(rng, op)
    name, compute = _OPERATIONS[op]
    worded = rng.random() < 0.6
    forms = _WORDED if worded else _SIGNED
    index = rng.randrange(len(forms))
    result = compute(a, b)
    said = f"{a} {name} {b} is {result}." if worded else f"{a} {op} {b} = {result}"
    return Exchange(
        skill="arithmetic",
        key=_key(a, op, b) + (f"|{worded}{index}" if op == "*" else ""),
        ask=forms[index].format(a=a, b=b, op=op, name=name),
        answer=said,
        short=str(result),
        gist=f"You asked what {a} {name} {b} is.",
        thought=f"{a} {op} {b} = {result}.",
    )


def _key(a: int, op: str, b: int) -> str:
    if op != "-":  # commutative
        a, b = sorted((a, b))
    return f"arithmetic|{a}{op}{b}"


def _operands(rng: Random, op: str) -> tuple[int, int]:
    if op == "*":
        return rng.randint(0, 10), rng.randint(0, 10)
    top = 100 if rng.random() < 0.75 else 20
    a, b = rng.randint(0, top), rng.randint(0, top)
    if op == "+":
        return (a, b) if a + b <= 100 else (100 - a, 100 - b)
    return max(a, b), min(a, b)


def comparison(rng: Random) -> Exchange:
    """Ask for the larger or smaller of two numbers, or whether a number is even."""
    if rng.random() < 0.25:
        number = rng.randint(0, 99)
        parity = "odd" if number % 2 else "even"
        ask = rng.choice((f"Is {number} even or odd?", f"Is the number {number} even or odd?"))
        return Exchange(
            "comparison",
            f"parity|{number}|{len(ask)}",
            ask,
            f"{number} is {parity}.",
            short=parity,
            gist=f"You asked if {number} is even or odd.",
        )
    a, b = rng.sample(range(100), 2)
    larger = rng.random() < 0.5
    chosen, other = (max(a, b), min(a, b)) if larger else (min(a, b), max(a, b))
    how = "larger" if larger else "smaller"
    ask = rng.choice(
        (
            f"Which is {how}, {a} or {b}?",
            f"Which number is {how}: {a} or {b}?",
            f"What is {how}, {a} or {b}?",
        )
    )
    return Exchange(
        "comparison",
        f"comparison|{min(a, b)}|{max(a, b)}",
        ask,
        f"{chosen} is {how} than {other}.",
        short=str(chosen),
        gist=f"You asked which is {how}, {a} or {b}.",
    )


def ordering(rng: Random) -> Exchange:
    """Ask for a sorted list of numbers."""
    numbers = rng.sample(range(1, 31), rng.randint(3, 5))
    down = rng.random() < 0.3
    shown = ", ".join(map(str, numbers))
    ask = (
        f"Sort these numbers from large to small: {shown}"
        if down
        else rng.choice((f"Sort these numbers: {shown}", f"Put these numbers in order: {shown}"))
    )
    return Exchange(
        "comparison",
        f"ordering|{ask}",
        ask,
        ", ".join(map(str, sorted(numbers, reverse=down))),
        gist="You asked me to sort numbers.",
    )


def counting(rng: Random) -> Exchange:
    """Ask to count up or down, or for the number of items in a list."""
    kind = rng.random()
    if kind < 0.4:
        start = 1 if rng.random() < 0.4 else rng.randint(1, 40)
        end = start + rng.randint(2, 14)
        ask = (
            rng.choice((f"Count to {end}.", f"Please count to {end}.", f"Can you count to {end}?"))
            if start == 1
            else rng.choice((f"Count from {start} to {end}.", f"Count up from {start} to {end}."))
        )
        numbers = list(range(start, end + 1))
        gist = f"You asked me to count to {end}."
    elif kind < 0.6:
        start, end = rng.randint(4, 25), 1
        ask = rng.choice((f"Count down from {start}.", f"Count backwards from {start} to 1."))
        numbers = list(range(start, end - 1, -1))
        gist = f"You asked me to count down from {start}."
    else:
        return _things(rng)
    return Exchange(
        "counting",
        f"counting|{ask}",
        ask,
        ", ".join(map(str, numbers)),
        gist=gist,
        changeable=False,
    )


def _things(rng: Random) -> Exchange:
    pool = rng.choice((lexicon.ANIMALS, lexicon.FOODS, lexicon.OBJECTS, lexicon.FIRST_NAMES))
    things = rng.sample(pool, rng.randint(2, 9))
    shown = ", ".join(things)
    ask = rng.choice(
        (
            f"How many things are in this list: {shown}",
            f"How many items do you see here: {shown}",
            f"Count the items: {shown}",
        )
    )
    return Exchange(
        "counting",
        f"things|{ask}",
        ask,
        f"There are {len(things)} items in the list.",
        short=str(len(things)),
        gist="You asked me to count the items of a list.",
        thought=", ".join(f"{thing} {number}" for number, thing in enumerate(things, 1)),
    )


_SPELL = (
    'Spell the word "{}".',
    'Spell "{}".',
    'How do you spell "{}"?',
    'Can you spell "{}"?',
    'Please spell "{}" for me.',
)
_COUNT_LETTERS = ('How many letters does the word "{}" have?', 'How many letters are in "{}"?')
_KNOWN_WORDS = frozenset((*lexicon.WORDS, *lexicon.FIRST_NAMES))


def _letters_key(word: str, how: str, index: int) -> str:
    """Key of a question for a word's letters; the key of a known word includes the wording.

    Known words are only held out by wording: most are single tokens, whose letters have to be
    memorized.
    """
    return f"letters|{word}" + (f"|{how}{index}" if word in _KNOWN_WORDS else "")


def spelling(rng: Random) -> Exchange:
    """Ask for the spelling of a word."""
    word = lexicon.word(rng) if rng.random() < 0.75 else lexicon.person(rng)
    index = rng.randrange(len(_SPELL))
    return Exchange(
        "spelling",
        _letters_key(word, "spell", index),
        _SPELL[index].format(word),
        spelled(word),
        gist=f'You asked me to spell "{word}".',
    )


def spelled(word: str) -> str:
    """Spell a word as in `R-I-V-E-R`."""
    return "-".join(word.upper())


def long_sum(rng: Random) -> Exchange:
    """Ask for a calculation of two steps, which needs reasoning."""
    a, b, c = rng.randint(2, 40), rng.randint(2, 30), rng.randint(1, 29)
    total = a + b
    op = rng.choice("+-")
    if op == "-":
        c = min(c, total)
    name, compute = _OPERATIONS[op]
    result = compute(total, c)
    asked = rng.choice((f"{a} + {b} {op} {c}", f"{a} plus {b} {name} {c}"))
    form = rng.choice(("What is {}?", "How much is {}?", "Calculate {}.", "Compute {}."))
    return Exchange(
        "thinking",
        _steps_key(a, b, op, c),
        form.format(asked),
        f"The result is {result}.",
        short=str(result),
        gist="You asked for a sum.",
        thought=f"{a} + {b} = {total}. {total} {op} {c} = {result}.",
        shown=(_key(a, "+", b), _key(total, op, c)),
    )


def _steps_key(a: int, b: int, op: str, c: int) -> str:
    return f"steps|{min(a, b)}+{max(a, b)}{op}{c}"


def word_problem(rng: Random) -> Exchange:
    """Ask a word problem, which needs reasoning."""
    name, thing = lexicon.person(rng), rng.choice(("apples", "coins", "books", "cookies", "stones"))
    a, b = rng.randint(3, 40), rng.randint(1, 30)
    total = a + b
    c = rng.choice([gone for gone in range(1, total + 1) if total - gone != 1])  # no "1 apples"
    first = rng.choice((f"gets {b} more", f"buys {b} more", f"finds {b} more"))
    second = rng.choice((f"gives away {c}", f"loses {c}", f"sells {c}"))
    ask = f"{name} has {a} {thing}, {first} and {second}. How many {thing} does {name} have now?"
    return Exchange(
        "thinking",
        _steps_key(a, b, "-", c),
        ask,
        f"{name} has {total - c} {thing}.",
        short=str(total - c),
        gist=f"You asked how many {thing} {name} has.",
        thought=f"{a} + {b} = {total}. {total} - {c} = {total - c}.",
        shown=(_key(a, "+", b), _key(total, "-", c)),
    )


def letter_count(rng: Random) -> Exchange:
    """Ask for the number of letters of a word; the reasoning spells and counts them."""
    word = lexicon.word(rng)
    index = rng.randrange(len(_COUNT_LETTERS))
    return Exchange(
        "thinking",
        _letters_key(word, "count", index),
        _COUNT_LETTERS[index].format(word),
        f'The word "{word}" has {len(word)} letters.',
        short=str(len(word)),
        gist=f'You asked how many letters "{word}" has.',
        thought=", ".join(f"{letter} {number}" for number, letter in enumerate(word.upper(), 1)),
    )
