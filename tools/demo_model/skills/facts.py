"""The fixed set of facts that the demo model knows: capitals, opposites, units and others.

Pairs of a fact and a wording are held out; the fact is trained with its other wordings.
"""

from dataclasses import dataclass
from functools import cache
from random import Random

from tools.demo_model import lexicon
from tools.demo_model.conversation import Exchange


@dataclass(frozen=True, slots=True)
class Relation:
    """Facts of one kind. `{s}` stands for the subject, `{a}` for the subject with its article,
    `{v}` for the value."""

    name: str
    pairs: dict[str, str]
    questions: tuple[str, ...]
    answer: str
    gist: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a relation."""

    relation: Relation
    subject: str
    value: str


def _pairs(text: str) -> dict[str, str]:
    rows = [entry.split("=") for entry in text.replace("\n", " ").split(";") if entry.strip()]
    return {subject.strip(): value.strip() for subject, value in rows}


def _cycle(items: list[str], step: int) -> dict[str, str]:
    return {item: items[(index + step) % len(items)] for index, item in enumerate(items)}


_CAPITALS = _pairs(
    "France=Paris; Germany=Berlin; Italy=Rome; Spain=Madrid; Norway=Oslo; Austria=Vienna; "
    "Portugal=Lisbon; Ireland=Dublin; Japan=Tokyo; Egypt=Cairo; Peru=Lima; "
    "Greece=Athens; Poland=Warsaw; Finland=Helsinki; Belgium=Brussels; Hungary=Budapest; "
    "Sweden=Stockholm; Denmark=Copenhagen; Russia=Moscow; China=Beijing; England=London; "
    "Cuba=Havana; Kenya=Nairobi; Canada=Ottawa; Chile=Santiago; Turkey=Ankara; Vietnam=Hanoi; "
    "Thailand=Bangkok; Iran=Tehran; Iraq=Baghdad; Romania=Bucharest; Bulgaria=Sofia; "
    "Serbia=Belgrade; "
    "Croatia=Zagreb; Ukraine=Kyiv; Iceland=Reykjavik; Scotland=Edinburgh; Wales=Cardiff; "
    "Morocco=Rabat; Tunisia=Tunis; Ghana=Accra; Nepal=Kathmandu; Qatar=Doha; Jordan=Amman; "
    "Lebanon=Beirut; Syria=Damascus; Cyprus=Nicosia; Malta=Valletta; Latvia=Riga; Estonia=Tallinn; "
    "Lithuania=Vilnius; Slovakia=Bratislava; Slovenia=Ljubljana; Ecuador=Quito; "
    "Australia=Canberra; "
    "Indonesia=Jakarta; Philippines=Manila; Senegal=Dakar"
)
_CONTINENTS = {
    "Europe": "France Germany Italy Spain Norway Austria Portugal Ireland Greece Poland Finland "
    "Belgium Hungary Sweden Denmark England Romania Bulgaria Croatia Iceland Scotland Latvia",
    "Asia": "Japan India China Vietnam Thailand Iran Iraq Nepal Qatar Jordan Indonesia Malaysia",
    "Africa": "Egypt Kenya Morocco Tunisia Ghana Senegal Nigeria Ethiopia",
    "America": "Peru Cuba Canada Chile Ecuador Mexico Brazil",
}
RELATIONS = (
    Relation(
        "capital",
        _CAPITALS,
        (
            "What is the capital of {s}?",
            "What's the capital of {s}?",
            "Which city is the capital of {s}?",
            "Name the capital of {s}.",
            "Tell me the capital of {s}.",
            "Do you know the capital of {s}?",
            "What is {s}'s capital?",
            "Can you tell me the capital of {s}?",
            "I need the capital of {s}.",
            "Capital of {s}?",
        ),
        "The capital of {s} is {v}.",
        "You asked for the capital of {s}.",
    ),
    Relation(
        "country",
        {city: country for country, city in _CAPITALS.items()},
        (
            "Which country has the capital {s}?",
            "{s} is the capital of which country?",
            "Of which country is {s} the capital?",
            "What country is {s} the capital of?",
        ),
        "{s} is the capital of {v}.",
        "You asked which country has the capital {s}.",
    ),
    Relation(
        "language",
        _pairs(
            "France=French; Germany=German; Italy=Italian; Spain=Spanish; Norway=Norwegian; "
            "Portugal=Portuguese; Japan=Japanese; Greece=Greek; Poland=Polish; Finland=Finnish; "
            "Hungary=Hungarian; Sweden=Swedish; Denmark=Danish; Russia=Russian; China=Chinese; "
            "England=English; Turkey=Turkish; Thailand=Thai; Brazil=Portuguese; Mexico=Spanish; "
            "Austria=German; Egypt=Arabic; Romania=Romanian; Ukraine=Ukrainian; Iceland=Icelandic"
        ),
        (
            "Which language do people speak in {s}?",
            "What language is spoken in {s}?",
            "What do people speak in {s}?",
            "Tell me the language of {s}.",
            "Which language is used in {s}?",
        ),
        "People in {s} speak {v}.",
        "You asked for the language of {s}.",
    ),
    Relation(
        "continent",
        {country: where for where, names in _CONTINENTS.items() for country in names.split()},
        (
            "On which continent is {s}?",
            "Which continent is {s} on?",
            "What continent does {s} belong to?",
            "Where in the world is {s}?",
        ),
        "{s} is in {v}.",
        "You asked for the continent of {s}.",
    ),
    Relation(
        "opposite",
        _pairs(
            "big=small; small=big; hot=cold; cold=hot; fast=slow; slow=fast; old=young; young=old; "
            "happy=sad; sad=happy; light=dark; dark=light; high=low; low=high; open=closed; "
            "closed=open; full=empty; empty=full; good=bad; bad=good; hard=soft; soft=hard; "
            "wet=dry; dry=wet; clean=dirty; dirty=clean; rich=poor; poor=rich; strong=weak; "
            "weak=strong; loud=quiet; quiet=loud; early=late; late=early; near=far; far=near; "
            "up=down; down=up; left=right; day=night; night=day; black=white; white=black; "
            "true=false; false=true; first=last; last=first; sweet=sour; long=short; short=long"
        ),
        (
            'What is the opposite of "{s}"?',
            'Tell me the opposite of "{s}".',
            'Name the opposite of "{s}".',
            'Which word is the opposite of "{s}"?',
            'What\'s the opposite of "{s}"?',
            'Give me the opposite of "{s}".',
        ),
        'The opposite of "{s}" is "{v}".',
        'You asked for the opposite of "{s}".',
    ),
    Relation(
        "young",
        _pairs(
            "dog=puppy; cat=kitten; cow=calf; horse=foal; sheep=lamb; goat=kid; pig=piglet; "
            "duck=duckling; hen=chick; bear=cub; frog=tadpole; swan=cygnet; goose=gosling; "
            "kangaroo=joey; deer=fawn; owl=owlet"
        ),
        (
            "What is a young {s} called?",
            "What do you call a young {s}?",
            "What is the name for a baby {s}?",
            "How do people call a young {s}?",
        ),
        "A young {s} is called a {v}.",
        "You asked what a young {s} is called.",
    ),
    Relation(
        "sound",
        _pairs(
            "dog=woof; cat=meow; cow=moo; sheep=baa; pig=oink; duck=quack; lion=roar; horse=neigh; "
            "mouse=squeak; owl=hoot; frog=croak; snake=hiss; bee=buzz; wolf=howl; hen=cluck"
        ),
        (
            "What sound does {a} make?",
            "What does {a} say?",
            "Which sound does {a} make?",
            "What noise does {a} make?",
        ),
        '{a} says "{v}".',
        "You asked what sound {a} makes.",
    ),
    Relation(
        "legs",
        _pairs(
            "dog=four; cat=four; cow=four; horse=four; sheep=four; hen=two; duck=two; owl=two; "
            "snake=no; spider=eight; ant=six; bee=six; fish=no; eagle=two; lion=four; tiger=four"
        ),
        (
            "How many legs does {a} have?",
            "How many legs has {a}?",
            "Tell me how many legs {a} has.",
            "What is the number of legs of {a}?",
        ),
        "{a} has {v} legs.",
        "You asked how many legs {a} has.",
    ),
    Relation(
        "color",
        _pairs(
            "the sky=blue; grass=green; snow=white; blood=red; coal=black; a banana=yellow; "
            "a lemon=yellow; a cherry=red; milk=white; a leaf=green; a carrot=orange; "
            "the sun=yellow; "
            "a frog=green; chocolate=brown; an orange=orange; a strawberry=red; a violet=purple; "
            "a swan=white; a crow=black; a pig=pink"
        ),
        (
            "What color is {s}?",
            "Which color is {s}?",
            "What is the color of {s}?",
            "Tell me the color of {s}.",
            "What color does {s} have?",
        ),
        "The color of {s} is {v}.",
        "You asked for the color of {s}.",
    ),
    Relation(
        "next day",
        _cycle(lexicon.DAYS, 1),
        (
            "Which day comes after {s}?",
            "What day is after {s}?",
            "What day follows {s}?",
            "Name the day after {s}.",
        ),
        "{v} comes after {s}.",
        "You asked which day comes after {s}.",
    ),
    Relation(
        "day before",
        _cycle(lexicon.DAYS, -1),
        (
            "Which day comes before {s}?",
            "What day is before {s}?",
            "Name the day before {s}.",
            "What day precedes {s}?",
        ),
        "{v} comes before {s}.",
        "You asked which day comes before {s}.",
    ),
    Relation(
        "next month",
        _cycle(lexicon.MONTHS, 1),
        (
            "Which month comes after {s}?",
            "What month is after {s}?",
            "What month follows {s}?",
            "Name the month after {s}.",
        ),
        "{v} comes after {s}.",
        "You asked which month comes after {s}.",
    ),
    Relation(
        "kind",
        {
            **dict.fromkeys(("an apple", "a banana", "a cherry", "a plum", "a peach"), "a fruit"),
            **dict.fromkeys(("a rose", "a tulip", "a daisy"), "a flower"),
            **dict.fromkeys(("an oak", "a pine", "a birch"), "a tree"),
            **dict.fromkeys(("a hammer", "a saw", "a drill"), "a tool"),
            **dict.fromkeys(("an eagle", "an owl", "a swan", "a crow"), "a bird"),
            **dict.fromkeys(("a salmon", "a shark", "a trout"), "a fish"),
            **dict.fromkeys(("a violin", "a piano", "a flute", "a drum"), "an instrument"),
            **dict.fromkeys(("a carrot", "an onion", "a potato"), "a vegetable"),
            **dict.fromkeys(("Mars", "Venus", "Saturn", "Jupiter"), "a planet"),
            **dict.fromkeys(("gold", "iron", "silver", "copper"), "a metal"),
        },
        (
            "What kind of thing is {s}?",
            "What is {s}?",
            "What sort of thing is {s}?",
            "Tell me what {s} is.",
        ),
        "{s} is {v}.",
        "You asked what {s} is.",
    ),
    Relation(
        "unit",
        _pairs(
            "seconds in a minute=60; minutes in an hour=60; hours in a day=24; days in a week=7; "
            "months in a year=12; days in a year=365; weeks in a year=52; cents in a dollar=100; "
            "meters in a kilometer=1000; years in a century=100; eggs in a dozen=12; "
            "grams in a kilogram=1000; letters in the alphabet=26; years in a decade=10"
        ),
        (
            "How many {s}?",
            "How many are the {s}?",
            "Tell me the number of {s}.",
            "What is the number of {s}?",
            "Do you know the number of {s}?",
        ),
        "The number of {s} is {v}.",
        "You asked for the number of {s}.",
    ),
    Relation(
        "plural",
        _pairs(
            "mouse=mice; child=children; foot=feet; tooth=teeth; man=men; woman=women; "
            "goose=geese; "
            "leaf=leaves; wolf=wolves; knife=knives; box=boxes; city=cities; baby=babies; "
            "cat=cats; "
            "house=houses; book=books; fox=foxes; party=parties; key=keys; bus=buses"
        ),
        (
            'What is the plural of "{s}"?',
            'Tell me the plural of "{s}".',
            'Give me the plural of "{s}".',
            'Which word is the plural of "{s}"?',
        ),
        'The plural of "{s}" is "{v}".',
        'You asked for the plural of "{s}".',
    ),
    Relation(
        "past",
        _pairs(
            "go=went; see=saw; eat=ate; run=ran; write=wrote; sing=sang; give=gave; take=took; "
            "come=came; know=knew; fly=flew; swim=swam; buy=bought; think=thought; make=made; "
            "find=found; keep=kept; sleep=slept; win=won; begin=began; walk=walked; play=played"
        ),
        (
            'What is the past tense of "{s}"?',
            'Tell me the past tense of "{s}".',
            'Give me the past tense of "{s}".',
            'What is "{s}" in the past tense?',
        ),
        'The past tense of "{s}" is "{v}".',
        'You asked for the past tense of "{s}".',
    ),
)


@cache
def _all_facts() -> tuple[Fact, ...]:
    return tuple(
        Fact(relation, subject, value)
        for relation in RELATIONS
        for subject, value in relation.pairs.items()
    )


def fact(rng: Random) -> Exchange:
    """Ask for one of the facts. Capitals are more frequent, as they are with users."""
    known = rng.choice(_all_facts()) if rng.random() < 0.8 else _capital(rng)
    relation, subject = known.relation, known.subject
    index = rng.randrange(len(relation.questions))
    values = {"s": subject, "a": lexicon.an(subject), "v": known.value}
    answer = relation.answer.format(**values)
    return Exchange(
        skill="facts",
        key=f"fact|{relation.name}|{subject}|{index}",
        ask=relation.questions[index].format(**values),
        answer=answer[0].upper() + answer[1:],
        short=known.value.split()[-1],
        gist=relation.gist.format(**values),
        thought=f"The user asks a question. I know this: {answer}",
    )


def _capital(rng: Random) -> Fact:
    country = rng.choice(list(_CAPITALS))
    return Fact(RELATIONS[0], country, _CAPITALS[country])


@cache
def _known_names() -> frozenset[str]:
    listed = (*lexicon.CITIES, *lexicon.FIRST_NAMES, *lexicon.PET_NAMES)
    known = (name for fact in _all_facts() for name in (fact.subject, fact.value))
    return frozenset((*listed, *known))


def _new_unknown_name(rng: Random) -> str:
    """Generate a name that is not a known one; some generated words are names of countries."""
    while (name := lexicon.new_name(rng)) in _known_names():
        pass
    return name


def unknown_fact(rng: Random) -> Exchange:
    """Ask for a fact about a generated name, which has no answer."""
    place = _new_unknown_name(rng)
    question, rest = rng.choice(
        (
            (f"What is the capital of {place}?", f"the capital of {place}"),
            (f"Which language do people speak in {place}?", f"the language of {place}"),
            (f"On which continent is {place}?", f"the continent of {place}"),
            (f"Who is {place}?", f"anybody called {place}"),
            (f"Tell me the capital of {place}.", f"the capital of {place}"),
        )
    )
    return Exchange(
        skill="unknown",
        key=f"unknown|{question}",
        ask=question,
        answer=f"I do not know {rest}.",
        gist=f"You asked for {rest}.",
        thought=f"I have never heard of {place}.",
    )
