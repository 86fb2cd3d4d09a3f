"""Words of the corpus, and generators of new words.

Half of the names, places, words and codes are generated from syllables or digits, so that the model
learns to copy them instead of memorizing a list.
"""

from collections.abc import Sequence
from random import Random

FIRST_NAMES = (
    "Mira Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karla Leo Maria Nina Oskar Paul "
    "Rosa Sam Tara Uma Victor Wanda Xenia Yara Zoe Adam Bella Carl Dora Eva Fred Gina Hans Iris "
    "Jack Kate Liam Mona Noah Olga Peter Quinn Rita Simon Tina Ulf Vera Will Alice Bob Carol Dan "
    "Erin Frank Grace Henry Ivy Jane Kim Lena Max Nora Otto Pia Ralf Sara Tom Ada Bruno Cleo Dean "
    "Ella Finn Gus Hana Ines Jim Kira Lars Mia Nils Omar Petra Rolf Sonia Timo Vito Lucas Julia "
    "Robert Susan Linda James John Mary Laura Kevin Brian Amir Priya Chen Yuki Diego Fatima Igor "
    "Sofia Marco Elena Ravi Zara Theo Luna Hector"
).split()
PET_NAMES = (
    "Rex Bello Luna Max Bruno Kitty Tiger Rocky Milo Coco Lucky Simba Nala Felix Bella Daisy Oscar "
    "Pepper Shadow Ginger Snowy Spot Biscuit Pumpkin Ziggy Rolo Mochi Pixel"
).split()
CITIES = (
    "Paris London Berlin Rome Madrid Oslo Vienna Prague Lisbon Dublin Tokyo Cairo Delhi Lima "
    "Boston Chicago Munich Hamburg Milan Naples Geneva Zurich Bergen Malmo Porto Seville Lyon "
    "Nice Kyoto Osaka Seoul Hanoi Quito Toronto Denver Dallas Austin Seattle Miami Sydney Perth "
    "Athens Warsaw Helsinki Brussels Budapest Stockholm Amsterdam Copenhagen Moscow Beijing"
).split()
COLORS = (
    "red blue green yellow orange purple pink brown black white gray teal golden silver violet"
).split()
ANIMALS = (
    "dog cat horse cow sheep goat pig duck hen fox wolf bear lion tiger mouse rabbit owl frog "
    "snake turtle whale shark eagle crow swan donkey monkey zebra camel otter beaver badger "
    "hedgehog squirrel deer"
).split()
FOODS = (
    "pizza pasta soup bread cheese rice salad cake honey apples noodles sushi pancakes tomatoes "
    "potatoes chocolate waffles curry beans cookies"
).split()
JOBS = (
    "baker teacher doctor pilot farmer painter sailor nurse lawyer gardener singer dancer miner "
    "driver writer plumber builder chef judge guard clerk tailor potter cook hunter banker "
    "librarian engineer carpenter mechanic"
).split()
HOBBIES = (
    "chess football swimming hiking painting reading dancing cooking sailing tennis fishing "
    "climbing running singing gardening skating"
).split()
OBJECTS = (
    "box key lamp book chair table cup bottle coat hat bag clock map ring rope stone coin drum "
    "flute kite ladder mirror needle pencil pillow bucket basket blanket hammer candle camera "
    "umbrella wallet phone ticket letter parcel folder notebook statue"
).split()
PLACES = (
    "kitchen garden cellar attic garage office library harbor tower barn hall school market "
    "museum station theater bakery forest castle village workshop stable chapel bridge hotel"
).split()
ADJECTIVES = (
    "small big old new round heavy light dark bright warm cold soft hard clean dirty broken shiny "
    "wooden broad narrow quiet loud simple strange"
).split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
WORDS = sorted(
    {
        *ANIMALS,
        *FOODS,
        *JOBS,
        *OBJECTS,
        *PLACES,
        *ADJECTIVES,
        *COLORS,
        *(
            "river mountain ocean island valley desert cloud storm winter summer spring autumn "
            "morning evening night house window door floor roof wall street road field flower tree "
            "leaf root seed grass sand water fire smoke metal glass paper cotton silver copper "
            "iron "
            "music song story poem picture letter number word voice sound silence shadow light "
            "friend mother father sister brother child doctor king queen prince knight wizard "
            "dragon giant ship boat train plane wheel engine bridge tunnel tower planet star moon "
            "sun sky rain snow wind ice heart hand foot head eye ear nose mouth finger shoulder "
            "happy sad angry brave clever gentle proud calm eager honest lucky noble quick rapid "
            "silent sweet tender wild young jump walk sleep dream laugh cry sing dance write read "
            "open close begin finish carry throw catch build break repair paint travel wander "
            "banana cherry lemon orange peach plum grape melon carrot onion garlic pepper sugar "
            "butter milk coffee tea juice wine vinegar salt flour egg meat fish steak sausage "
            "jacket shirt dress shoe boot glove scarf belt button pocket collar sleeve ribbon "
            "anchor arrow banner barrel beacon blossom candle canyon carpet cavern ceiling circle "
            "corner cottage crystal curtain diamond engine fabric feather fountain galaxy harvest "
            "hollow horizon jungle kettle lantern marble meadow mirror orchard palace pebble "
            "pioneer puzzle quarter rocket saddle signal spider temple thunder timber treasure "
            "velvet village violin volcano whisper window yellow zipper strawberry blueberry"
        ).split(),
    }
)

_ONSETS = "b d f g h j k l m n p r s t v w z br dr gr kr tr st sk pl fl sh th".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "m", "x", "k", "t"]


def new_word(rng: Random) -> str:
    """Generate a word of two or three syllables."""
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if last else "")
        for last in ([False, True] if rng.random() < 0.6 else [False, False, True])
    )


def new_name(rng: Random) -> str:
    """Generate a capitalized word."""
    return new_word(rng).capitalize()


def mixed(rng: Random, known: Sequence[str], *, capital: bool = False) -> str:
    """Draw one of the known words or, with probability 0.5, a new word."""
    if rng.random() < 0.5:
        return rng.choice(known)
    return new_name(rng) if capital else new_word(rng)


def person(rng: Random) -> str:
    """Draw a first name, known or new."""
    return mixed(rng, FIRST_NAMES, capital=True)


def city(rng: Random) -> str:
    """Draw a city, known or new."""
    return mixed(rng, CITIES, capital=True)


def word(rng: Random) -> str:
    """Draw a lower-case word, known or new."""
    return mixed(rng, WORDS)


def digits(rng: Random, count: int) -> str:
    """Generate a code of `count` digits."""
    return "".join(rng.choice("0123456789") for _ in range(count))


def an(noun: str) -> str:
    """Return the noun with its indefinite article."""
    return ("an " if noun[0] in "aeiou" and not noun.startswith("use") else "a ") + noun


def listed(items: Sequence[str]) -> str:
    """Join the items as in `a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
