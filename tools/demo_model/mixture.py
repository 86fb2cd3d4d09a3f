"""Generate conversations: how often each skill occurs, and in which kind of conversation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from tools.demo_model.conversation import Conversation, Exchange
from tools.demo_model.skills import (
    facts,
    json_objects,
    listings,
    memory,
    numbers,
    stories,
    system,
    talk,
    tool_calls,
)
from tools.demo_model.split import is_held_out

KINDS = {"chat": 0.29, "style": 0.18, "tools": 0.25, "context": 0.18, "thinking": 0.10}
"""Probability of each kind of conversation."""
_STORY_TOKENS = 340
"""Approximate length of a story; shorter rows have none."""


@dataclass(slots=True)
class Scene:
    """A conversation under construction, with the state that later turns can refer to."""

    rng: Random
    conversation: Conversation
    room: int
    """Length of the row in tokens."""
    told: memory.Statements = field(default_factory=dict)
    persona: system.Persona | None = None
    rule: system.Rule | None = None
    style: system.Style | None = None
    listing: listings.Listing | None = None
    functions: list[tool_calls.Function] = field(default_factory=list)

    def add(self, exchange: Exchange) -> None:
        """Append an exchange."""
        self.conversation.exchanges.append(exchange)


Skill = Callable[[Scene], Exchange | None]
"""Generates an exchange for the scene; None if the scene lacks what it needs."""


def _summary(scene: Scene) -> Exchange | None:
    return talk.summary(scene.rng, scene.conversation.exchanges)


def _again(scene: Scene) -> Exchange | None:
    history = scene.conversation.exchanges
    if not history or len(history[-1].answer) > 120 or history[-1].calls:
        return None
    return talk.again(scene.rng, history[-1])


def _story(scene: Scene) -> Exchange | None:
    return stories.story(scene.rng) if scene.room > 1.4 * _STORY_TOKENS else None


def _ask(scene: Scene) -> Exchange | None:
    told = {name: said for name, said in scene.told.items() if name in memory.NAMES}
    if not told and scene.rng.random() < 0.7:
        return None
    return memory.ask(scene.rng, told)


def _who(scene: Scene) -> Exchange:
    if scene.persona:
        return system.ask_persona(scene.rng, scene.persona)
    return talk.identity(scene.rng)


def _rule(scene: Scene) -> Exchange | None:
    return system.trigger_rule(scene.rng, scene.rule) if scene.rule else None


def _listed(scene: Scene) -> Exchange | None:
    if scene.listing is None:
        return None
    return listings.ask_listing(scene.rng, scene.listing, missing=MISSING)


SKILLS: dict[str, Skill] = {
    "fact": lambda scene: facts.fact(scene.rng),
    "unknown": lambda scene: facts.unknown_fact(scene.rng),
    "arithmetic": lambda scene: numbers.arithmetic(scene.rng),
    "comparison": lambda scene: numbers.comparison(scene.rng),
    "ordering": lambda scene: numbers.ordering(scene.rng),
    "counting": lambda scene: numbers.counting(scene.rng),
    "spelling": lambda scene: numbers.spelling(scene.rng),
    "long_sum": lambda scene: numbers.long_sum(scene.rng),
    "word_problem": lambda scene: numbers.word_problem(scene.rng),
    "letter_count": lambda scene: numbers.letter_count(scene.rng),
    "tell": lambda scene: memory.tell(scene.rng, scene.told),
    "tell_two": lambda scene: memory.tell_two(scene.rng, scene.told),
    "ask": _ask,
    "place": lambda scene: memory.place(scene.rng, scene.told),
    "ask_place": lambda scene: memory.ask_place(scene.rng, scene.told),
    "secret": lambda scene: memory.secret(scene.rng, scene.told),
    "ask_secret": lambda scene: memory.ask_secret(scene.rng, scene.told),
    "small_talk": lambda scene: talk.small_talk(scene.rng),
    "who": _who,
    "rule": _rule,
    "listed": _listed,
    "name_some": lambda scene: talk.name_some(scene.rng),
    "repeat": lambda scene: talk.repeat(scene.rng),
    "again": _again,
    "mood": lambda scene: talk.mood(scene.rng),
    "picture": lambda scene: talk.picture(scene.rng),
    "summary": _summary,
    "story": _story,
    "object": lambda scene: json_objects.as_object(scene.rng),
    "array": lambda scene: json_objects.as_array(scene.rng),
    "in_message": lambda scene: listings.in_message(scene.rng),
    "use": lambda scene: tool_calls.use(scene.rng, scene.functions),
    "use_twice": lambda scene: tool_calls.use_twice(scene.rng, scene.functions),
    "missing_value": lambda scene: tool_calls.missing_value(scene.rng, scene.functions),
    "impossible": lambda scene: tool_calls.impossible(scene.rng, scene.functions),
}

MIXES: dict[str, dict[str, float]] = {
    "chat": {
        "fact": 9, "unknown": 2.5, "arithmetic": 28, "comparison": 7, "ordering": 2, "counting": 7,
        "spelling": 16, "tell": 8, "tell_two": 1.5, "ask": 16, "place": 1.5, "ask_place": 3.5,
        "secret": 2, "ask_secret": 7, "small_talk": 3.5, "who": 5, "rule": 16, "name_some": 2,
        "repeat": 8, "again": 2, "mood": 1.5, "picture": 1.5, "summary": 45, "story": 2.5,
        "object": 9, "array": 3.5, "in_message": 7,
    },
    "style": {
        "fact": 26, "arithmetic": 18, "comparison": 9, "tell": 9, "ask": 16, "place": 2,
        "ask_place": 4, "secret": 2, "ask_secret": 6, "small_talk": 5, "who": 10, "mood": 3,
        "name_some": 3, "unknown": 2, "picture": 2, "spelling": 4,
    },
    "tools": {
        "use": 40, "use_twice": 26, "missing_value": 6, "impossible": 22, "fact": 6, "tell": 2,
        "ask": 2, "small_talk": 3, "arithmetic": 4, "who": 2, "object": 1.5, "picture": 1,
        "summary": 1,
    },
    "context": {
        "listed": 80, "fact": 5, "tell": 3, "ask": 3, "small_talk": 2, "arithmetic": 4, "who": 1,
        "summary": 2,
    },
    "thinking": {
        "long_sum": 20, "word_problem": 18, "letter_count": 20, "fact": 8, "arithmetic": 8,
        "counting": 5, "tell": 6, "ask": 8, "spelling": 5, "small_talk": 4, "secret": 2,
        "ask_secret": 2, "picture": 1, "mood": 2, "object": 2, "who": 2,
    },
}  # fmt: skip
"""Relative frequency of each skill in each kind of conversation.

Skills that take longest to learn are most frequent: lists, functions, letters, numbers, summaries.
"""
PERSONAS = 0.2
"""Share of the chats that have a persona."""
MISSING = 0.2
"""Share of the questions about a list that the list does not answer."""
_PLAIN_ASKS = frozenset({"repeat", "rule", "json", "story", "small_talk", "identity", "pictures"})
"""Skills whose questions get no ornaments."""


def conversation(rng: Random, room: int, kinds: Mapping[str, float] = KINDS) -> Conversation:
    """Generate a conversation of about `room` tokens or slightly more."""
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    scene = Scene(rng, Conversation(), room)
    _SETTINGS[kind](scene)
    used = len(scene.conversation.system) / 3 + 150 * len(scene.functions)
    mix = MIXES[kind]
    while used < room:
        exchange = next_exchange(scene, mix)
        if exchange:
            scene.add(exchange)
            num_characters = len(exchange.ask) + len(exchange.answer) + 100 * len(exchange.calls)
            used += 8 + num_characters / 4
    return scene.conversation


def next_exchange(scene: Scene, mix: Mapping[str, float]) -> Exchange | None:
    """Generate an exchange of the mix in the scene's style.

    None if the skill or the style does not apply, or if the question is held out.
    """
    name = scene.rng.choices(list(mix), list(mix.values()))[0]
    told = dict(scene.told)
    made = SKILLS[name](scene)
    if made and any(map(is_held_out, (made.key, *made.shown))):
        made = None
    if made and scene.style and made.skill != "rule":
        made = scene.style.apply(made)
    if made is None:
        scene.told = told  # discard the statements of the dropped exchange
        return None
    return add_ornaments(scene.rng, made)


def add_ornaments(rng: Random, exchange: Exchange) -> Exchange:
    """Occasionally add words to the question, or remove its capital letter and punctuation."""
    chance = rng.random()
    if chance > 0.16 or exchange.skill in _PLAIN_ASKS or "\n" in exchange.ask:
        return exchange
    ask = exchange.ask
    if chance < 0.07:
        ask = (ask[0].lower() + ask[1:]) if ask[1:2].islower() else ask
        ask = ask.rstrip("?.!")
    elif chance < 0.13:
        ask = rng.choice(("Hey, ", "Please: ", "Quick question: ", "Now: ", "And: ")) + ask
    else:
        ask += rng.choice((" Thanks.", " Please.", " Thank you!"))
    gist = exchange.gist and exchange.gist.replace(exchange.ask, ask)  # if it quotes the question
    return replace(exchange, ask=ask, gist=gist)


# ---------------------------------------------------------------------------------------- settings


def _chat(scene: Scene) -> None:
    rng = scene.rng
    chance = rng.random()
    if chance < 0.3:
        scene.conversation.system = rng.choice(system.PLAIN)
    elif chance < 0.3 + PERSONAS:
        scene.persona, scene.conversation.system = system.persona(rng)
    elif chance < 0.42 + PERSONAS:
        scene.rule = system.rule(rng)
        scene.conversation.system = scene.rule.prompt
    elif chance < 0.48 + PERSONAS:  # a statement in the system prompt
        memory.tell(rng, scene.told, "name")
        scene.conversation.system = scene.told["name"].replace("your", "The user's") + "."
    if rng.random() < 0.1:
        scene.conversation.thinking = False


def _style(scene: Scene) -> None:
    rng = scene.rng
    scene.style = system.style(rng)
    parts = [scene.style.prompt]
    chance = rng.random()
    if chance < 0.25:
        scene.persona, text = system.persona(rng)
        parts.insert(rng.randrange(2), text)
    elif chance < 0.5:
        parts.insert(0, rng.choice(system.PLAIN[:4]))
    scene.conversation.system = rng.choice((" ", " ", "\n")).join(parts)
    if rng.random() < 0.1:
        scene.conversation.thinking = False


def _tools(scene: Scene) -> None:
    rng = scene.rng
    max_count = max(1, min(6, scene.room // 200))
    scene.functions = tool_calls.offered(rng, rng.randint(1, max_count))
    made = scene.conversation
    made.tools = [one.tool for one in scene.functions]
    made.sorted_tools = rng.random() < 0.08
    made.compact = rng.random() < 0.12
    chance = rng.random()
    if chance < 0.35:
        made.system = rng.choice(system.PLAIN)
    elif chance < 0.45:
        scene.persona, made.system = system.persona(rng)
    if made.compact:
        made.system = " ".join(filter(None, (made.system, "Write compact JSON.")))
    chance = rng.random()
    made.thinking = True if chance < 0.22 else False if chance < 0.32 else None


def _context(scene: Scene) -> None:
    rng = scene.rng
    max_count = max(3, scene.room // 32)
    scene.listing = listings.listing(rng, rng.randint(max(2, max_count // 3), max_count))
    parts = [scene.listing.text]
    if rng.random() < 0.4:
        parts.insert(0, rng.choice(system.PLAIN))
    scene.conversation.system = "\n".join(parts)
    chance = rng.random()
    scene.conversation.thinking = True if chance < 0.06 else False if chance < 0.14 else None


def _thinking(scene: Scene) -> None:
    scene.conversation.thinking = True
    if scene.rng.random() < 0.3:
        scene.conversation.system = scene.rng.choice(system.PLAIN)


_SETTINGS: dict[str, Callable[[Scene], None]] = {
    "chat": _chat,
    "style": _style,
    "tools": _tools,
    "context": _context,
    "thinking": _thinking,
}
