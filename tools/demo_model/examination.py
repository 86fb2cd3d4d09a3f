"""Questions of the examination: conversations that end with a held-out question, and the answers.

`EXAMINATION` has one function for each skill, which generates an item. The turns before the last
question are like those of the corpus.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tools.demo_model import lexicon, mixture
from tools.demo_model.conversation import Call, Conversation, Exchange, Tool, messages
from tools.demo_model.mixture import SKILLS, Scene
from tools.demo_model.skills import (
    listings,
    memory,
    stories,
    system,
    talk,
    tool_calls,
)
from tools.demo_model.split import draw_held_out, is_held_out

SEED = 4711
_FILLERS = {"fact": 5, "arithmetic": 3, "small_talk": 2, "mood": 1, "name_some": 1, "comparison": 1}


@dataclass(frozen=True, slots=True)
class Item:
    """One held-out question and its right answer: text in `content`, or tool calls in `calls`.

    With `story_about`, the answer is instead any long text that contains this word.
    """

    skill: str
    messages: list[dict[str, Any]]
    key: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
    tools: list[Tool] = field(default_factory=list)
    thinking: bool | None = None
    story_about: str = ""


Maker = Callable[[Random], Item]


def items(skill: str, count: int) -> list[Item]:
    """Generate the items of a skill; the same ones on every call."""
    rng = Random(f"{SEED} {skill}")
    return [EXAMINATION[skill](rng) for _ in range(count)]


def _scene(rng: Random) -> Scene:
    return Scene(rng, Conversation(), room=10_000)


def _fill(scene: Scene, count: int) -> None:
    while len(scene.conversation.exchanges) < count:
        exchange = mixture.next_exchange(scene, _FILLERS)
        if exchange:
            scene.add(exchange)


def _item(scene: Scene, skill: str, last: Exchange, thinking: bool | None = None) -> Item:
    return Item(
        skill,
        messages(scene.conversation.system, scene.conversation.exchanges, last),
        last.key,
        content=last.answer,
        tools=scene.conversation.tools,
        thinking=thinking,
    )


def _plain(skill: str, source: str, thinking: bool | None = None) -> Maker:
    """A question of one skill after 0 to 2 other turns."""

    def make(rng: Random) -> Item:
        scene = _scene(rng)
        if rng.random() < 0.4:
            scene.conversation.system = rng.choice(system.PLAIN)
        _fill(scene, rng.choice((0, 0, 1, 2)))
        last = draw_held_out(lambda: SKILLS[source](scene))
        return _item(scene, skill, last, thinking)

    return make


def _memory(skill: str, min_turns: int, max_turns: int, *, new: bool = False) -> Maker:
    """A statement of the user, other turns, and the question for it."""

    def make(rng: Random) -> Item:
        while True:
            scene = _scene(rng)
            name = rng.choice(memory.ATTRIBUTES).name
            statement = memory.tell(rng, scene.told, name)
            if new and not _is_new(statement.ask):
                continue
            scene.add(statement)
            _fill(scene, 1 + rng.randint(min_turns, max_turns))
            last = memory.ask(rng, scene.told, name)
            if is_held_out(last.key):
                return _item(scene, skill, last)

    return make


def _is_new(statement: str) -> bool:
    known = {*lexicon.FIRST_NAMES, *lexicon.PET_NAMES, *lexicon.CITIES}
    name = statement.rstrip(".").split()[-1]
    return name[0].isupper() and name not in known and name not in lexicon.MONTHS


def _unknown_memory(rng: Random) -> Item:
    scene = _scene(rng)
    _fill(scene, rng.randint(0, 3))
    last = draw_held_out(lambda: memory.ask(rng, {}))
    return _item(scene, "memory_unknown", last)


def _secret(rng: Random) -> Item:
    while True:
        scene = _scene(rng)
        scene.add(memory.secret(rng, scene.told))
        _fill(scene, rng.randint(1, 4))
        last = memory.ask_secret(rng, scene.told)
        if last and is_held_out(last.key):
            return _item(scene, "secret", last)


def _persona(rng: Random) -> Item:
    while True:
        scene = _scene(rng)
        scene.persona, scene.conversation.system = system.persona(rng)
        last = system.ask_persona(rng, scene.persona)
        if is_held_out(last.key):
            return _item(scene, "persona", last)


def _rule(rng: Random) -> Item:
    while True:
        scene = _scene(rng)
        scene.rule = system.rule(rng)
        scene.conversation.system = scene.rule.prompt
        last = system.trigger_rule(rng, scene.rule)
        if is_held_out(last.key):
            return _item(scene, "rule", last)


def _styled(kind: str) -> Maker:
    def make(rng: Random) -> Item:
        while True:
            scene = _scene(rng)
            scene.style = system.style(rng)
            if scene.style.kind != kind:
                continue
            scene.conversation.system = scene.style.prompt
            _fill(scene, rng.choice((0, 0, 1, 2)))
            asked = SKILLS[rng.choice(("fact", "fact", "arithmetic", "comparison"))](scene)
            last = scene.style.apply(asked) if asked and is_held_out(asked.key) else None
            if last:
                return _item(scene, kind, last)

    return make


def _context(skill: str, num_lines: int, from_top: int) -> Maker:
    """A list in the system prompt and a question about one of its first lines."""

    def make(rng: Random) -> Item:
        while True:
            scene = _scene(rng)
            known = listings.listing(rng, num_lines)
            scene.conversation.system = known.text
            _fill(scene, rng.choice((0, 0, 1)))
            last = listings.ask_listing(rng, known, known.lines[:from_top])
            if is_held_out(last.key):
                return _item(scene, skill, last)

    return make


def _missing_context(rng: Random) -> Item:
    scene = _scene(rng)
    known = listings.listing(rng, 6)
    scene.conversation.system = known.text

    def ask() -> Exchange | None:
        asked = listings.ask_listing(rng, known)
        return asked if asked.skill == "context_missing" else None

    return _item(scene, "context_missing", draw_held_out(ask))


def _offering(rng: Random, count: int) -> tuple[Scene, list[tool_calls.Function]]:
    scene = _scene(rng)
    offered = tool_calls.offered(rng, count)
    scene.conversation.tools = [one.tool for one in offered]
    scene.functions = offered
    return scene, offered


def _call(
    skill: str, *, unseen: bool = False, answer: bool = False, thinking: bool | None = None
) -> Maker:
    """A request for one of the functions; with `unseen`, for a function excluded from training."""

    def make(rng: Random) -> Item:
        while True:
            scene, offered = _offering(rng, rng.randint(1, 3))
            wanted = rng.choice(offered)
            if unseen:
                wanted = tool_calls.function(rng, unseen=True)
                offered.insert(rng.randrange(len(offered) + 1), wanted)
                scene.conversation.tools = [one.tool for one in offered]
            last = tool_calls.use(rng, offered, wanted)
            if is_held_out(last.key):
                return _item(scene, skill, last) if answer else _calls(scene, skill, last, thinking)

    return make


def _weather(rng: Random) -> Item:
    while True:
        scene, offered = _offering(rng, rng.randint(1, 3))
        last = tool_calls.use(rng, offered)
        if last.calls[0].name == "get_weather" and is_held_out(last.key):
            return _calls(scene, "tool_weather", last)


def _parallel(rng: Random) -> Item:
    while True:
        scene, offered = _offering(rng, rng.randint(1, 3))
        last = tool_calls.use_twice(rng, offered)
        if last and is_held_out(last.key):
            return _calls(scene, "tool_parallel", last)


def _calls(scene: Scene, skill: str, last: Exchange, thinking: bool | None = None) -> Item:
    sent = [{"role": "user", "content": last.ask}]
    return Item(
        skill, sent, last.key, calls=last.calls, tools=scene.conversation.tools, thinking=thinking
    )


def _no_call(rng: Random) -> Item:
    scene, _ = _offering(rng, rng.randint(1, 3))
    source = rng.choice(("fact", "arithmetic", "small_talk"))
    return _item(scene, "tool_none", draw_held_out(lambda: SKILLS[source](scene)))


def _impossible(rng: Random) -> Item:
    scene, offered = _offering(rng, rng.randint(1, 3))
    last = draw_held_out(lambda: tool_calls.impossible(rng, offered))
    return _item(scene, "tool_impossible", last)


def _summary(rng: Random) -> Item:
    while True:
        scene = _scene(rng)
        scene.add(memory.tell(rng, scene.told, "name"))
        _fill(scene, rng.randint(1, 5))
        last = talk.summary(rng, scene.conversation.exchanges)
        if last and is_held_out(last.key):
            return _item(scene, "summary", last)


def _story(rng: Random) -> Item:
    while True:
        asked = stories.story(rng)
        if " called " in asked.ask and is_held_out(asked.key):
            name = asked.ask.rstrip(".").split()[-1]
            sent = [{"role": "user", "content": asked.ask}]
            return Item("story", sent, asked.key, story_about=name)


EXAMINATION: dict[str, Maker] = {
    "facts": _plain("facts", "fact"),
    "unknown": _plain("unknown", "unknown"),
    "arithmetic": _plain("arithmetic", "arithmetic"),
    "comparison": _plain("comparison", "comparison"),
    "counting": _plain("counting", "counting"),
    "spelling": _plain("spelling", "spelling"),
    "memory_0": _memory("memory_0", 0, 0),
    "memory_1_3": _memory("memory_1_3", 1, 3),
    "memory_4_8": _memory("memory_4_8", 4, 8),
    "memory_new": _memory("memory_new", 0, 4, new=True),
    "memory_unknown": _unknown_memory,
    "secret": _secret,
    "persona": _persona,
    "identity": _plain("identity", "who"),
    "rule": _rule,
    "oneword": _styled("oneword"),
    "capitals": _styled("capitals"),
    "closing": _styled("closing"),
    "opening": _styled("opening"),
    "json_style": _styled("json_style"),
    "context_100": _context("context_100", 5, 5),
    "context_500": _context("context_500", 28, 6),
    "context_1000": _context("context_1000", 55, 10),
    "context_missing": _missing_context,
    "in_message": _plain("in_message", "in_message"),
    "tool_weather": _weather,
    "tool_call": _call("tool_call"),
    "tool_unseen": _call("tool_unseen", unseen=True),
    "tool_parallel": _parallel,
    "tool_answer": _call("tool_answer", answer=True),
    "tool_think": _call("tool_think", thinking=True),
    "tool_none": _no_call,
    "tool_impossible": _impossible,
    "json": _plain("json", "object"),
    "json_array": _plain("json_array", "array"),
    "think_sum": _plain("think_sum", "long_sum", thinking=True),
    "think_problem": _plain("think_problem", "word_problem", thinking=True),
    "think_letters": _plain("think_letters", "letter_count", thinking=True),
    "no_think": _plain("no_think", "fact", thinking=False),
    "summary": _summary,
    "repeat": _plain("repeat", "repeat"),
    "mood": _plain("mood", "mood"),
    "lists": _plain("lists", "name_some"),
    "small_talk": _plain("small_talk", "small_talk"),
    "pictures": _plain("pictures", "picture"),
    "story": _story,
}
