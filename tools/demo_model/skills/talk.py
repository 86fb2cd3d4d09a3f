"""Small talk and simple requests: greetings, identity, lists, repetition, sentiment, images."""

from random import Random

from tools.demo_model import lexicon
from tools.demo_model.conversation import Exchange, Weight

_SMALL_TALK = (
    (
        "Hello!;Hi!;Hello;Hi;Hi there!;Hey!;Hey;Good morning!;Good evening!;Hello there!;"
        "Hey there!;"
        "Good afternoon!;Greetings!",
        "Hello! How can I help you?",
        "You said hello.",
    ),
    (
        "How are you?;How are you today?;How do you do?;How is it going?;Are you well?;"
        "Hi, how are you?;"
        "Hello, how are you?;How are you doing?",
        "I am doing well, thank you. How can I help you?",
        "You asked how I am.",
    ),
    (
        "Thank you!;Thanks!;Thanks a lot!;Thank you very much!;Many thanks!;Thank you.;Thanks.;"
        "Great, thanks!;Thanks for your help!",
        "You are welcome!",
        "You thanked me.",
    ),
    (
        "Goodbye!;Bye!;See you!;Good night!;Bye bye!;See you later!;Goodbye.;I have to go.",
        "Goodbye! Have a nice day.",
        "You said goodbye.",
    ),
    (
        "Tell me a joke.;Do you know a joke?;Make me laugh.;Tell a joke.;Please tell me a joke.",
        "Why did the chicken cross the road? To get to the other side.",
        "You asked for a joke.",
    ),
    (
        "What can you do?;How can you help me?;What are you able to do?;What are your skills?;"
        "Can you help me?;What do you know?",
        "I can answer small questions, remember what you tell me, call functions, write JSON "
        "and tell "
        "stories.",
        "You asked what I can do.",
    ),
    (
        "Are you there?;Are you still there?;Do you hear me?;Test;test;ping;This is a test.;"
        "Testing.",
        "Yes, I am here.",
        "You asked if I am here.",
    ),
    (
        "Who made you?;Who trained you?;Where do you come from?;Who built you?;Who created you?;"
        "Who are your makers?",
        "I was trained from nothing by the Corral project.",
        "You asked who made me.",
    ),
    (
        "Are you a human?;Are you a person?;Are you real?;Are you a machine?;Are you a robot?;"
        "Am I talking to a human?",
        "I am a small language model.",
        "You asked if I am a human.",
    ),
    (
        "Ok.;Okay.;I see.;Good.;Great!;Nice!;Cool!;Fine.;All right.;Wonderful!;Perfect!",
        "Is there anything else that I can do for you?",
        "You were content.",
    ),
    (
        "What is the meaning of life?;What is the sense of life?;Tell me the meaning of life.",
        "The meaning of life is 42.",
        "You asked for the meaning of life.",
    ),
    (
        "What time is it?;What is the time?;What day is it today?;What is the date today?;"
        "What is today's date?",
        "I do not know the time or the date.",
        "You asked for the time.",
    ),
)
_IDENTITY = (
    "Who are you?;What are you?;What is your name?;What's your name?;Please introduce yourself.;"
    "Introduce yourself.;Tell me who you are.;Do you have a name?;Who am I talking to?;"
    "Which model are you?;Tell me about yourself."
).split(";")
IDENTITY = "I am the Corral demo model, a tiny assistant."
_LISTS = {
    "colors": "red blue green yellow orange purple".split(),
    "animals": "dog cat horse cow sheep pig".split(),
    "fruits": "apple banana cherry peach plum lemon".split(),
    "vegetables": "carrot onion potato tomato pepper bean".split(),
    "days of the week": lexicon.DAYS,
    "months": lexicon.MONTHS[:6],
    "cities": "Paris London Berlin Rome Madrid Oslo".split(),
    "countries": "France Germany Italy Spain Norway Japan".split(),
    "planets": "Mercury Venus Earth Mars Jupiter Saturn".split(),
    "birds": "eagle owl swan duck crow robin".split(),
    "instruments": "piano violin flute drum guitar harp".split(),
    "metals": "iron gold silver copper tin zinc".split(),
    "sports": "football tennis swimming running skiing hockey".split(),
    "drinks": "water milk tea coffee juice lemonade".split(),
    "seasons": "spring summer autumn winter".split(),
}
_NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "2": 2, "3": 3, "4": 4, "5": 5}


def small_talk(rng: Random) -> Exchange:
    """A greeting or other small talk."""
    asks, answer, gist = rng.choice(_SMALL_TALK)
    key, ask = _with_opening(rng, rng.choice(asks.split(";")))
    return Exchange("small_talk", key, ask, answer, gist=gist)


def identity(rng: Random) -> Exchange:
    """Ask who the model is, without a persona."""
    key, ask = _with_opening(rng, rng.choice(_IDENTITY))
    return Exchange(
        "identity",
        key,
        ask,
        IDENTITY,
        short="Corral",
        gist="You asked who I am.",
        thought="I am the Corral demo model.",
    )


def _with_opening(rng: Random, ask: str) -> tuple[str, str]:
    """Key and text of a question. Only with a random opening can it be held out."""
    if rng.random() < 0.6:
        return "", ask
    opened = rng.choice(("So, ", "Well, ", "Oh, ", "Okay, ", "One thing: ", "Corral, ")) + ask
    return f"opened|{opened.lower()}", opened


def name_some(rng: Random) -> Exchange:
    """Ask for some items of a category."""
    kind = rng.choice(list(_LISTS))
    number = rng.choice(list(_NUMBERS))
    count = min(_NUMBERS[number], len(_LISTS[kind]))
    index = rng.randrange(4)
    ask = (
        f"Name {number} {kind}.",
        f"List {number} {kind}.",
        f"Give me {number} {kind}.",
        f"Tell me {number} {kind}.",
    )[index]
    answer = lexicon.listed(_LISTS[kind][:count])
    return Exchange(
        "lists",
        f"list|{kind}|{number}|{index}",
        ask,
        answer[0].upper() + answer[1:] + ".",
        gist=f"You asked for {number} {kind}.",
    )


def repeat(rng: Random) -> Exchange:
    """Ask to repeat words exactly."""
    words = [
        lexicon.word(rng)
        if rng.random() < 0.8
        else rng.choice((lexicon.person(rng), lexicon.digits(rng, rng.randint(1, 4))))
        for _ in range(rng.randint(1, 8))
    ]
    text = " ".join(words)
    if rng.random() < 0.5:
        text = text[0].upper() + text[1:] + rng.choice(".!?")
    form = rng.choice(
        (
            'Repeat: "{}"',
            'Say "{}"',
            'Please say "{}"',
            'Repeat after me: "{}"',
            'Write "{}"',
            'Repeat the words "{}"',
            'Answer with exactly "{}"',
            "Repeat after me: {}",
            "Say: {}",
        )
    )
    return Exchange(
        "repeat",
        f"repeat|{text}",
        form.format(text),
        text,
        gist="You asked me to repeat words.",
        thought="The user wants to read these words again.",
    )


def again(rng: Random, before: Exchange) -> Exchange:
    """Ask for the last answer or the last question."""
    if rng.random() < 0.6:
        ask = rng.choice(("Say that again.", "Repeat your last answer.", "Once more, please."))
        answer, gist = before.answer, "You asked me to repeat my answer."
    else:
        ask = rng.choice(("What did I just ask?", "What was my last message?"))
        answer, gist = f'You wrote: "{before.ask}"', "You asked for your last message."
    return Exchange(
        "again",
        f"again|{ask}|{before.key}",
        ask,
        answer,
        gist=gist,
        thought="I look at the last turn.",
        changeable=False,
    )


def mood(rng: Random) -> Exchange:
    """Ask for the sentiment of a short review."""
    good = rng.random() < 0.5
    words = (
        "great wonderful excellent lovely perfect fantastic good pleasant amazing nice"
        if good
        else "terrible awful bad boring horrible poor broken useless slow ugly"
    ).split()
    thing = rng.choice(
        (*lexicon.OBJECTS, "food", "service", "film", "book", "hotel", "staff", "room", "music")
    )
    first, second = rng.sample(words, 2)
    text = rng.choice(
        (
            f"The {thing} was {first}.",
            f"The {thing} is {first} and {second}.",
            f"What {lexicon.an(first)} {thing}!",
            f"I think the {thing} was really {first}.",
            f"{first.capitalize()} {thing}, {second} too.",
        )
    )
    form = rng.choice(
        (
            'Is this positive or negative: "{}"',
            'Is this review positive or negative? "{}"',
            'Positive or negative: "{}"',
            'What is the mood of this text, positive or negative? "{}"',
        )
    )
    said = "positive" if good else "negative"
    return Exchange(
        "mood",
        f"mood|{text}",
        form.format(text),
        f"This is {said}.",
        short=said,
        gist="You asked for the mood of a text.",
        thought=f"The words sound {said}.",
    )


def picture(rng: Random) -> Exchange:
    """Ask about an image, which the model cannot see."""
    thing = rng.choice(
        ("picture", "image", "photo", "photograph", "screenshot", "drawing", "painting")
    )
    form = rng.choice(
        (
            "What is in this {}?",
            "What do you see in this {}?",
            "Describe this {}.",
            "What does this {} show?",
            "Look at this {}: what is it?",
            "Please describe the {}.",
            "Can you see the {}?",
            "What's in the {}?",
            "Which color is the car in this {}?",
            "How many people are in the {}?",
            "Is there a cat in this {}?",
            "Read the text in this {}.",
            "Can you see images?",
            "Do you understand pictures?",
        )
    )
    ask = form.format(thing)
    if rng.random() < 0.2:
        ask = rng.choice((f"[image]\n{ask}", f"{ask}\n[image]", f"<image>\n{ask}"))
    return Exchange(
        "pictures",
        f"picture|{ask}",
        ask,
        "I cannot see images. Please describe it in words.",
        gist="You asked about an image.",
        thought="The user asks about an image, and I cannot see images.",
    )


def summary(rng: Random, history: list[Exchange]) -> Exchange | None:
    """Ask for a summary: the gists of a short conversation, in order."""
    gists = [exchange.gist for exchange in history]
    if not 1 <= len(gists) <= 6 or None in gists:
        return None
    ask = rng.choice(
        (
            "Summarize our conversation.",
            "Please summarize our conversation.",
            "Summarize the conversation so far.",
            "Give me a summary of our conversation.",
            "What have we talked about?",
            "What did we talk about?",
            "Sum up our conversation.",
        )
    )
    answer = " ".join(gist for gist in gists if gist)
    return Exchange(
        "summary",
        f"summary|{answer}",
        ask,
        answer,
        gist="You asked for a summary.",
        thought="I go through the conversation from its start.",
        weight=Weight.RECALL,
        changeable=False,
    )
