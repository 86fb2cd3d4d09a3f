"""Convert texts to JSON: the requested keys, in this order, with values from the text."""

from random import Random
from typing import Any

from tools.demo_model import lexicon
from tools.demo_model.conversation import Exchange, Weight, to_json

_FORMS = (
    "Give me a JSON object with the keys {k} for this: {t}",
    "Return a JSON object with the keys {k}: {t}",
    "Write this as JSON with the keys {k}: {t}",
    "Extract the keys {k} as JSON: {t}",
    "Turn this into a JSON object with the keys {k}: {t}",
    "{t} Write that as a JSON object with the keys {k}.",
    "{t} Give me JSON with the keys {k}.",
)


def as_object(rng: Random) -> Exchange:
    """Ask for a JSON object with some keys."""
    text, values = rng.choice((_person, _person, _product, _event, _fields, _fields))(rng)
    keys = list(values)
    if rng.random() < 0.3 and len(keys) > 1:
        keys = rng.sample(keys, rng.randint(1, len(keys)))
    asked = lexicon.listed([f'"{key}"' for key in keys])
    form = rng.choice(_FORMS)
    if len(keys) == 1:
        form = form.replace("keys", "key")
    ask = form.format(k=asked, t=text)
    return Exchange(
        "json",
        f"json|{ask}",
        ask,
        to_json({key: values[key] for key in keys}, compact=False),
        gist="You asked for a JSON object.",
        thought=f"The user wants JSON with the keys {asked}.",
        weight=Weight.RECALL,
        changeable=False,
    )


def as_array(rng: Random) -> Exchange:
    """Ask for a JSON array of numbers or words."""
    if rng.random() < 0.4:
        start = rng.randint(1, 30)
        end = start + rng.randint(2, 7)
        ask = f"Write a JSON array of the numbers from {start} to {end}."
        items: list[Any] = list(range(start, end + 1))
    else:
        pool = rng.choice((lexicon.FOODS, lexicon.OBJECTS, lexicon.COLORS, lexicon.FIRST_NAMES))
        items = rng.sample(pool, rng.randint(2, 6))
        form = rng.choice(("Write these as a JSON array: {}", "Make a JSON list of: {}"))
        ask = form.format(", ".join(items))
    return Exchange(
        "json",
        f"array|{ask}",
        ask,
        to_json(items, compact=False),
        gist="You asked for a JSON array.",
        thought="The user wants a JSON array.",
        changeable=False,
    )


def _person(rng: Random) -> tuple[str, dict[str, Any]]:
    name, age, city, job = (
        lexicon.person(rng),
        rng.randint(8, 90),
        lexicon.city(rng),
        rng.choice(lexicon.JOBS),
    )
    if rng.random() < 0.4:
        return f"{name} is {age} years old.", {"name": name, "age": age}
    if rng.random() < 0.5:
        text = f"{name} is {age} years old and lives in {city}."
        return text, {"name": name, "age": age, "city": city}
    text = f"{name} is {lexicon.an(job)} in {city}."
    return text, {"name": name, "job": job, "city": city}


def _product(rng: Random) -> tuple[str, dict[str, Any]]:
    product, color, price = (
        rng.choice(lexicon.OBJECTS),
        rng.choice(lexicon.COLORS),
        rng.randint(2, 199),
    )
    text = f"The {color} {product} costs {price} dollars."
    return text, {"product": product, "color": color, "price": price}


def _event(rng: Random) -> tuple[str, dict[str, Any]]:
    name, day, where = lexicon.person(rng), rng.choice(lexicon.DAYS), lexicon.city(rng)
    return (
        f"{name} goes to {where} on {day}.",
        {"name": name, "city": where, "day": day},
    )


def _fields(rng: Random) -> tuple[str, dict[str, Any]]:
    keys = rng.sample(
        (
            *("id name city color price count code day month owner title status size weight room"
              " team level score shape taste".split()),
            lexicon.new_word(rng),
            lexicon.new_word(rng),
        ),
        rng.randint(1, 5),
    )  # fmt: skip
    values: dict[str, Any] = {}
    for key in keys:
        values[key] = rng.choice(
            (
                rng.randint(0, 999),
                lexicon.person(rng),
                lexicon.word(rng),
                rng.choice(lexicon.COLORS),
            )
        )
    shown = [f"the {key} is {value}" for key, value in values.items()]
    text = lexicon.listed(shown)
    return text[0].upper() + text[1:] + ".", values
