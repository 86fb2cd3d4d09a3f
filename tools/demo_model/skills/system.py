"""Instructions in system prompts: a persona, a style for every answer, or a rule."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tools.demo_model import lexicon
from tools.demo_model.conversation import Exchange, to_json

PLAIN = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are a helpful AI assistant.",
    "You are a chatbot.",
    "Be helpful.",
    "Be concise.",
    "Be brief and friendly.",
    "Answer the user's questions.",
    "You are an assistant. Answer politely.",
    "You help people with their questions.",
    "You are a careful assistant.",
    "Help the user.",
)
"""System prompts that do not change the answers."""


@dataclass(frozen=True, slots=True)
class Style:
    """A style of every answer; `apply` returns None if it does not fit an exchange."""

    kind: str
    prompt: str
    apply: Callable[[Exchange], Exchange | None]


@dataclass(frozen=True, slots=True)
class Persona:
    """Name and role of the assistant."""

    name: str
    role: str

    @property
    def text(self) -> str:
        """The introduction, as in `I am Zora, a baker.`"""
        return f"I am {self.name}, {lexicon.an(self.role)}."


_ONE_WORD = (
    "Answer with one word.",
    "Answer with one word only.",
    "Reply with a single word.",
    "Use one word for every answer.",
    "Your answers have exactly one word.",
    "Answer every question with a single word.",
    "Only ever say one word.",
    "Respond with one word and nothing else.",
)
_CAPITALS = (
    "Answer in capital letters.",
    "Write everything in capital letters.",
    "Reply in capitals only.",
    "Use only capital letters.",
    "ANSWER IN CAPITAL LETTERS.",
    "All your answers are in upper case.",
    "Write in upper case.",
    "Always answer in all caps.",
)
_CLOSING = (
    'End every answer with "{}"',
    'Always end with "{}"',
    'Finish each answer with the words "{}"',
    'Close every reply with "{}"',
    'At the end of every answer say "{}"',
    'Each of your answers ends with "{}"',
)
_OPENING = (
    'Begin every answer with "{}"',
    'Always start with "{}"',
    'Start each answer with the words "{}"',
    'Every answer begins with "{}"',
)
_JSON = (
    'Answer in JSON with the key "{}".',
    'Always answer with a JSON object that has the key "{}".',
    'Reply with a JSON object with the one key "{}".',
)
_PHRASES = (
    "Over and out.",
    "Have a nice day!",
    "Stay curious.",
    "Cheers!",
    "Yours truly.",
    "That is all.",
    "Good luck!",
    "See you soon!",
    "Thank you for asking.",
    "Long live the king!",
    "Ahoy!",
    "Well then.",
    "As you wish.",
    "Peace!",
    "Take care.",
    "Beep!",
)


def style(rng: Random) -> Style:
    """Draw a style and a wording."""
    draw = rng.random()
    if draw < 0.22:
        return Style("oneword", rng.choice(_ONE_WORD), _one_word)
    if draw < 0.54:
        return Style("capitals", rng.choice(_CAPITALS), _capitals)
    phrase = _phrase(rng)
    if draw < 0.75:
        return Style("closing", rng.choice(_CLOSING).format(phrase), _around("", f" {phrase}"))
    if draw < 0.87:
        return Style("opening", rng.choice(_OPENING).format(phrase), _around(f"{phrase} ", ""))
    key = rng.choice(("answer", "result", "reply", "value", "text", lexicon.new_word(rng)))
    return Style("json_style", rng.choice(_JSON).format(key), _json(key))


def _phrase(rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(_PHRASES)
    words = [lexicon.word(rng) for _ in range(rng.randint(1, 3))]
    return " ".join(words).capitalize() + rng.choice(".!")


def _one_word(exchange: Exchange) -> Exchange | None:
    return replace(exchange, answer=exchange.short) if exchange.short else None


def _capitals(exchange: Exchange) -> Exchange | None:
    return replace(exchange, answer=exchange.answer.upper()) if _is_plain(exchange) else None


def _around(before: str, after: str) -> Callable[[Exchange], Exchange | None]:
    def apply(exchange: Exchange) -> Exchange | None:
        if not _is_plain(exchange):
            return None
        return replace(exchange, answer=before + exchange.answer + after)

    return apply


def _json(key: str) -> Callable[[Exchange], Exchange | None]:
    def apply(exchange: Exchange) -> Exchange | None:
        if not exchange.short:
            return None
        value = int(exchange.short) if exchange.short.isdecimal() else exchange.short
        if str(value) != exchange.short:  # keep leading zeros of codes
            value = exchange.short
        return replace(exchange, answer=to_json({key: value}, compact=False))

    return apply


def _is_plain(exchange: Exchange) -> bool:
    return exchange.changeable and len(exchange.answer) <= 160


# ------------------------------------------------------------------------------------------ persona


def persona(rng: Random) -> tuple[Persona, str]:
    """Generate a persona and its system prompt."""
    name, role = lexicon.person(rng), rng.choice((*lexicon.JOBS, "pirate", "wizard", "robot"))
    who = Persona(name, role)
    text = rng.choice(
        (
            "You are {n}, {a}.",
            "Your name is {n} and you are {a}.",
            "You are {a}. Your name is {n}.",
            "You play {n}, {a}.",
            "You are {a} called {n}.",
            "Act as {n}, {a}.",
        )
    )
    return who, text.format(n=name, a=lexicon.an(role))


def ask_persona(rng: Random, who: Persona) -> Exchange:
    """Ask for the name or role of the persona."""
    question, answer, short = rng.choice(
        (
            ("Who are you?", who.text, who.name),
            ("Please introduce yourself.", who.text, who.name),
            ("Introduce yourself.", who.text, who.name),
            ("Tell me who you are.", who.text, who.name),
            ("What is your name?", f"My name is {who.name}.", who.name),
            ("What's your name?", f"My name is {who.name}.", who.name),
            ("What is your job?", f"I am {lexicon.an(who.role)}.", who.role),
            ("What do you do?", f"I am {lexicon.an(who.role)}.", who.role),
        )
    )
    return Exchange(
        "persona",
        f"persona|{question}|{who.name}|{who.role}",
        question,
        answer,
        short=short,
        gist="You asked who I am.",
        thought=f"I am {who.name}, {lexicon.an(who.role)}.",
    )


# --------------------------------------------------------------------------------------------- rule


@dataclass(frozen=True, slots=True)
class Rule:
    """A trigger word and its fixed answer."""

    prompt: str
    trigger: str
    reply: str


def rule(rng: Random) -> Rule:
    """Generate a rule with its system prompt."""
    trigger, reply = lexicon.word(rng), lexicon.word(rng)
    text = rng.choice(
        (
            'If the user says "{}", answer "{}".',
            'When the user says "{}", reply "{}".',
            'If you read "{}", say only "{}".',
            'To "{}" you answer "{}".',
        )
    )
    return Rule(text.format(trigger, reply), trigger, reply)


def trigger_rule(rng: Random, given: Rule) -> Exchange:
    """The user sends the trigger word."""
    ask = rng.choice((given.trigger, f'"{given.trigger}"', f"{given.trigger}!"))
    return Exchange(
        "rule",
        f"rule|{given.trigger}|{given.reply}",
        ask,
        given.reply,
        short=given.reply,
        gist=f'You said "{given.trigger}".',
        thought="The system prompt has an answer for this.",
    )
