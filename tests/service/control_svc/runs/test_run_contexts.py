"""What models are shown of long threads: the beginning stays, and only what is needed is read."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from control_svc.inference.turns import TurnMessage, TurnRequest, TurnRole
from control_svc.runs.model import MIN_TOKEN_LIMIT, IncompleteReason, RunState, Truncation
from svc_kit.errors import ContextLengthExceeded
from tests.support.runs import WordCounter, Worlds, begun, now, told
from tests.support.scripted_turns import Script, ScriptedTurns, says

WINDOW = 100
"""The context of the model, in words."""
TURNS = 50
ABOUT_THREADS = re.compile(r"\b(threads|messages|items|timeline_items|runs|run_steps)\b")


def words_of(messages: tuple[TurnMessage, ...]) -> list[str]:
    """All words, in order."""
    texts = (getattr(part, "text", "") for message in messages for part in message.parts)
    return [word for text in texts for word in text.split()]


class NarrowModel:
    """Answers with a few words, while its context has room for the prompt."""

    def __init__(self) -> None:
        self.prompts: list[list[str]] = []

    def __call__(self, request: TurnRequest) -> Script:
        """The answer to a request."""
        prompt = words_of(request.messages)
        if len(prompt) > WINDOW:
            raise ContextLengthExceeded(
                field="messages", prompt_tokens=len(prompt), context_tokens=WINDOW
            )
        self.prompts.append(prompt)
        return says(f"answer {len(self.prompts)} is this")


async def test_a_long_thread_is_cut_seldom(a_world: Worlds) -> None:
    """Over fifty turns nearly every prompt begins with the one before, instructions are always
    there, and what is left after a cut fills at most half the context."""
    model = NarrowModel()
    world = a_world(ScriptedTurns(model))
    assistant = await world.assistant(instructions="You are kind")
    thread = await world.thread()
    async with world.process(counter=WordCounter()).working() as process:
        for number in range(TURNS):
            await world.say(thread.id, f"question {number} of many more")
            run = await begun(process, assistant, thread)
            await told(process, run)
            assert (await now(process, run)).state is RunState.COMPLETED

    pairs = list(zip(model.prompts, model.prompts[1:], strict=False))
    cuts = [later for earlier, later in pairs if later[: len(earlier)] != earlier]
    assert len(model.prompts) == TURNS
    assert 0 < len(cuts) <= TURNS * 9 // (WINDOW // 2) + 1
    assert all(len(later) <= WINDOW // 2 for later in cuts)
    assert all(prompt[:3] == ["You", "are", "kind"] for prompt in model.prompts)
    assert all(
        prompt[-5:-2] == ["question", str(n), "of"] for n, prompt in enumerate(model.prompts)
    )


async def test_what_cannot_be_cut_is_refused(a_world: Worlds) -> None:
    """A last message that has no room by itself fails its run."""
    world = a_world(ScriptedTurns(NarrowModel()))
    thread = await world.thread("word " * (WINDOW + 1))
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(), thread)
        await told(process, run)
        ended = await now(process, run)

    assert ended.state is RunState.FAILED
    assert ended.error is not None
    assert ended.error.code == "invalid_prompt"


async def test_a_limit_that_no_cut_meets_leaves_the_run_incomplete(a_world: Worlds) -> None:
    """It is not the model's context that is exceeded, so nothing has failed."""
    script = replace(says("Hi"), prompt_tokens=MIN_TOKEN_LIMIT + 1)
    world = a_world(ScriptedTurns(lambda _: script))
    thread = await world.thread("one", "two")
    async with world.process().working() as process:
        about = {"max_prompt_tokens": MIN_TOKEN_LIMIT}
        run = await begun(process, await world.assistant(), thread, **about)
        await told(process, run)
        ended = await now(process, run)

    assert ended.state is RunState.INCOMPLETE
    assert ended.incomplete_reason is IncompleteReason.MAX_PROMPT_TOKENS
    assert ended.error is None


@pytest.mark.parametrize("num_messages", [3, 7])
async def test_a_runs_own_limit_cuts_nothing_for_others(a_world: Worlds, num_messages: int) -> None:
    """The run is shown the end of the thread, the next one all of it again, or all that the model
    has room for."""

    def model(request: TurnRequest) -> Script:
        num_words = len(words_of(request.messages))
        if num_words > 600:
            raise ContextLengthExceeded(
                field="messages", prompt_tokens=num_words, context_tokens=600
            )
        return replace(says("Hi"), prompt_tokens=num_words)

    turns = ScriptedTurns(model)
    world = a_world(turns)
    assistant = await world.assistant()
    thread = await world.thread(*("word " * 100 for _ in range(num_messages)))
    shown = []
    async with world.process(counter=WordCounter()).working() as process:
        for about in ({"max_prompt_tokens": MIN_TOKEN_LIMIT}, {}):
            run = await begun(process, assistant, thread, **about)
            await told(process, run)
            assert (await now(process, run)).state is RunState.COMPLETED
            shown.append(len(words_of(turns.requests[-1].messages)))

    assert shown == [100, 301]


async def test_a_limit_of_every_run_cuts_seldom_too(a_world: Worlds) -> None:
    """Runs of one limit go on from where the one before was cut, so that prompts begin alike."""
    turns = ScriptedTurns(
        lambda request: replace(says("Hi"), prompt_tokens=len(words_of(request.messages)))
    )
    world = a_world(turns)
    assistant, thread = await world.assistant(), await world.thread()
    shown: list[list[str]] = []
    async with world.process(counter=WordCounter()).working() as process:
        for number in range(20):
            await world.say(thread.id, f"question {number} " + "word " * 28)
            run = await begun(process, assistant, thread, max_prompt_tokens=MIN_TOKEN_LIMIT)
            await told(process, run)
            assert (await now(process, run)).state is RunState.COMPLETED
            shown.append(words_of(turns.requests[-1].messages))
        await told(process, run := await begun(process, assistant, thread))

    cuts = [later for earlier, later in pairwise(shown) if later[: len(earlier)] != earlier]
    assert 0 < len(cuts) <= 20 * 31 // (MIN_TOKEN_LIMIT // 2) + 1
    assert len(words_of(turns.requests[-1].messages)) == 20 * 31


class Reads:
    """Statements about threads and runs, and the rows that they gave; those about jobs and streams
    depend on who comes first."""

    def __init__(self) -> None:
        self.statements: Counter[str] = Counter()
        self.num_rows = 0

    def __call__(self, _connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        """A statement has run. Either driver holds all its rows by now."""
        if ABOUT_THREADS.search(statement):
            self.statements[statement] += 1
            self.num_rows += len(cursor._rows)


@contextmanager
def watched() -> Iterator[Reads]:
    """The statements of a time."""
    reads = Reads()
    event.listen(Engine, "after_cursor_execute", reads)
    try:
        yield reads
    finally:
        event.remove(Engine, "after_cursor_execute", reads)


@pytest.mark.parametrize("count", [1, 10])
async def test_last_messages_read_only_what_they_need(a_world: Worlds, count: int) -> None:
    """A thread of a thousand messages costs the same statements, reads as many rows, and shows as
    many messages, as one of ten."""
    turns = ScriptedTurns(lambda _: says("Yes"))
    world = a_world(turns)
    assistant = await world.assistant()
    seen: list[Reads] = []
    for length in (10, 1000):
        thread = await world.thread(*(f"number {number}" for number in range(length)))
        async with world.process(f"of {length}").working() as process:
            with watched() as reads:
                about = Truncation(last_messages=count)
                run = await begun(process, assistant, thread, truncation=about)
                await told(process, run)
        users = [m for m in turns.requests[-1].messages if m.role is TurnRole.USER]
        assert len(users) == count
        seen.append(reads)

    assert seen[0].statements == seen[1].statements
    assert seen[0].num_rows == seen[1].num_rows
    assert any(statement.startswith("SELECT") for statement in seen[0].statements)
