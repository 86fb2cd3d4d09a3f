"""Stories of about 250 words, for tests that need a long generation."""

from random import Random

from tools.demo_model import lexicon
from tools.demo_model.conversation import Exchange, Weight

_HEROES = (*lexicon.ANIMALS, "king", "queen", "knight", "wizard", "robot", "dragon", "pirate")
_TRAITS = "brave clever gentle curious honest lucky calm eager proud quiet".split()
_OPENINGS = (
    "Once upon a time there was {a} {trait} {hero} called {name}.",
    "Long ago, in a land far away, there lived {a} {trait} {hero} called {name}.",
    "This is the story of {name}, {a} {trait} {hero}.",
    "In a small town lived {a} {trait} {hero} by the name of {name}.",
)
_HOMES = (
    "{name} lived in {home} near the {place}, where the days were long and quiet.",
    "The home of {name} was {home} behind the {place}, and it was full of books.",
    "Every day {name} walked from {home} to the {place} and said hello to everybody there.",
    "From the window of {home} one could see the {place} and the blue hills behind it.",
)
_MORNINGS = (
    "One morning {name} found {thing} on the road, and it was very {adjective}.",
    "On a cold {day} {name} heard a strange sound and saw {thing} under a tree.",
    "One evening somebody left {thing} at the door, and nobody knew why.",
    "Early on a {day} the wind brought {thing} right into the garden.",
)
_WISHES = (
    '"I must find out who lost it," said {name}, and packed some {food} for the way.',
    '"What a riddle," said {name}. "I will ask my friend {friend} what it means."',
    '"Somebody must be sad without it," thought {name}, and took a bag and some {food}.',
    '"This is the start of a journey," said {name}, and put on a {color} coat.',
)
_FRIENDS = (
    "On the way {name} met {friend} the {animal}, who was {feeling} and wanted to come along.",
    "At the bridge sat {friend} the {animal}. {friend} looked {feeling} and asked where to go.",
    "Behind a stone slept {friend} the {animal} with a {color} tail, who woke up and smiled.",
    "Soon there was {friend} the {animal}, who knew every road of the land.",
)
_TROUBLES = (
    "Together they walked for three days, over a mountain and through a dark forest.",
    "Together they crossed a wide river on an old boat that was full of holes.",
    "Then it began to rain, and they had to sleep in a cave with a hundred bats.",
    "But the road was closed by a great wall, and nobody could see its end.",
)
_TURNS = (
    'In the night a light came near. "Do not be afraid," said an old {animal2}. "I can help."',
    'Then a voice called from above: "Who is there?" It was an {animal2} as big as a house.',
    "Suddenly the ground shook, and out of the earth came the {animal2} with a golden crown.",
    'A small {animal2} sat in the grass and cried. "I have lost the only thing I own," it said.',
)
_FINDS = (
    "{name} showed what the wind had brought, and the {animal2} danced with joy.",
    "When the {animal2} saw the {plain}, it laughed so loud that the clouds went away.",
    '"That is mine!" cried the {animal2}. "I have looked for it all my life."',
    "The {animal2} took the {plain} with both hands and did not know what to say.",
)
_THANKS = (
    'As a thank you they got a {color} {gift}, and {friend} said: "We will share it."',
    "They ate {food} together until the stars came out, and they sang old songs.",
    "From that day on the three of them met every {day} at the {place}.",
    "The news went through the whole land, and every child knew the name of {name}.",
)
_MORALS = (
    "And {name} learned that a good friend is worth more than gold.",
    "And {name} knew: who gives with an open heart will never be alone.",
    "And so {name} came home tired and happy, and slept for two days.",
    "And whenever the wind blew, {name} opened the window and smiled.",
)
_PARTS = (
    _OPENINGS,
    _HOMES,
    _MORNINGS,
    _WISHES,
    _FRIENDS,
    _TROUBLES,
    _TURNS,
    _FINDS,
    _THANKS,
    _MORALS,
)
THE_END = "The end."


def story(rng: Random) -> Exchange:
    """Ask for a story about an animal or thing, about a named hero, or about no given topic."""
    hero, name = rng.choice(_HEROES), lexicon.person(rng)
    draw = rng.random()
    if draw < 0.3:
        ask = rng.choice(
            ("Tell me a story.", "Tell me a long story.", "Write a story.", "I want a story.")
        )
        hero, name = rng.choice((("fox", "Rolo"), ("fox", "Mira"), ("owl", "Luna")))
    elif draw < 0.6:
        form = rng.choice(
            (
                "Tell me a story about {}.",
                "Write a story about {}.",
                "Tell me a long story about {}.",
            )
        )
        ask = form.format(lexicon.an(hero))
    else:
        form = rng.choice(
            (
                "Tell me a story about {} called {}.",
                "Write a story about {} named {}.",
                "I want a story about {} called {}.",
            )
        )
        ask = form.format(lexicon.an(hero), name)
    return Exchange(
        "story",
        f"story|{ask}|{hero}",
        ask,
        _text(rng, hero, name),
        gist="You asked for a story.",
        thought=f"I tell a story about {name}.",
        weight=Weight.STORY,
        changeable=False,
    )


def _text(rng: Random, hero: str, name: str) -> str:
    plain = f"{rng.choice(lexicon.ADJECTIVES)} {rng.choice(lexicon.OBJECTS)}"
    trait = rng.choice(_TRAITS)
    values = {
        "a": "an" if trait[0] in "aeiou" else "a",
        "trait": trait,
        "hero": hero,
        "name": name,
        "home": rng.choice(("a small house", "an old mill", "a round tower", "a hollow tree")),
        "place": rng.choice(lexicon.PLACES),
        "plain": plain,
        "thing": lexicon.an(plain),
        "adjective": rng.choice(lexicon.ADJECTIVES),
        "day": rng.choice(lexicon.DAYS),
        "food": rng.choice(lexicon.FOODS),
        "friend": rng.choice(lexicon.FIRST_NAMES),
        "color": rng.choice(lexicon.COLORS),
        "animal": rng.choice(lexicon.ANIMALS),
        "feeling": rng.choice(("happy", "sad", "tired", "hungry", "lonely", "cheerful")),
        "animal2": rng.choice(("owl", "elephant", "eagle", "otter", "ox")),
        "gift": rng.choice(lexicon.OBJECTS),
    }
    parts = [rng.choice(part).format(**values) for part in _PARTS]
    paragraphs = [" ".join(parts[:3]), " ".join(parts[3:6]), " ".join(parts[6:])]
    return "\n\n".join(paragraphs) + f" {THE_END}"
