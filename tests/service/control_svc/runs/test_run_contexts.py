"""Prompts of runs on long threads: they keep their beginning, and only needed rows are read."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from control_svc.inference.turns import TurnMessage, TurnRequest, TurnRole
from control_svc.runs.model import IncompleteReason, RunState, Truncation
from svc_kit.errors import ContextLengthExceeded, FeatureUnsupported
from tests.support.runs import WordCounter, Worlds, execute_run
from tests.support.scripted_turns import Script, ScriptedTurns, text_script

WINDOW = 100
"""Context length of the model, in words."""
TURNS = 50
on_sqlite = pytest.mark.parametrize("database_url", [None], ids=["sqlite"])
"""For long threads: their prompts do not depend on the database."""
THREAD_TABLES = re.compile(r"\b(threads|messages|items|timeline_items|runs|run_steps)\b")


def split_words(messages: tuple[TurnMessage, ...]) -> list[str]:
    texts = (getattr(part, "text", "") for message in messages for part in message.parts)
    return [word for text in texts for word in text.split()]


class NarrowModel:
    """A model with a short context that answers with a few words."""

    def __init__(self) -> None:
        self.prompts: list[list[str]] = []

    def __call__(self, request: TurnRequest) -> Script:
        prompt = split_words(request.messages)
        if len(prompt) > WINDOW:
            raise ContextLengthExceeded(
                field="messages", prompt_tokens=len(prompt), context_tokens=WINDOW
            )
        self.prompts.append(prompt)
        return text_script(f"answer {len(self.prompts)} is this")


@on_sqlite
async def test_a_long_thread_is_rarely_truncated(make_world: Worlds) -> None:
    """Over fifty turns nearly every prompt begins with the previous one, the instructions are
    kept, and a truncated prompt fills at most half of the context."""
    model = NarrowModel()
    world = make_world(ScriptedTurns(model))
    assistant = await world.assistant(instructions="You are kind")
    thread = await world.thread()
    async with world.process(counter=WordCounter()).run_jobs(patience_s=50) as process:
        for number in range(TURNS):
            await world.add_messages(thread.id, f"question {number} of many more")
            ended, _ = await execute_run(process, assistant, thread)
            assert ended.state is RunState.COMPLETED

    pairs = pairwise(model.prompts)
    cuts = [later for earlier, later in pairs if later[: len(earlier)] != earlier]
    assert len(model.prompts) == TURNS
    assert 0 < len(cuts) <= TURNS * 9 // (WINDOW // 2) + 1
    assert all(len(later) <= WINDOW // 2 for later in cuts)
    assert all(prompt[:3] == ["You", "are", "kind"] for prompt in model.prompts)
    assert all(
        prompt[-5:-2] == ["question", str(n), "of"] for n, prompt in enumerate(model.prompts)
    )


class NoCounter:
    """The tokens of an engine in text mode cannot be counted."""

    async def count(self, request: TurnRequest) -> int:
        raise FeatureUnsupported(feature="token ids")


@on_sqlite
async def test_half_of_a_thread_is_dropped_if_tokens_cannot_be_counted(make_world: Worlds) -> None:
    model = NarrowModel()
    world = make_world(ScriptedTurns(model))
    assistant, thread = await world.assistant(instructions="You are kind"), await world.thread()
    async with world.process(counter=NoCounter()).run_jobs(patience_s=50) as process:
        for number in range(15):
            await world.add_messages(thread.id, f"question {number} of many more")
            ended, _ = await execute_run(process, assistant, thread)
            assert ended.state is RunState.COMPLETED

    lengths = [len(prompt) for prompt in model.prompts]
    (cut,) = (index for index, (one, two) in enumerate(pairwise(lengths)) if two < one)
    assert lengths[cut + 1] == pytest.approx(lengths[cut] / 2, abs=12)
    assert all(prompt[:3] == ["You", "are", "kind"] for prompt in model.prompts)


async def test_a_message_that_exceeds_the_context_fails_its_run(make_world: Worlds) -> None:
    """Nothing can be truncated if the last message alone is too long."""
    world = make_world(ScriptedTurns(NarrowModel()))
    thread = await world.thread("word " * (WINDOW + 1))
    async with world.process().run_jobs() as process:
        ended, _ = await execute_run(process, await world.assistant(), thread)

    assert ended.state is RunState.FAILED
    assert ended.error is not None
    assert ended.error.code == "invalid_prompt"


async def test_a_prompt_over_the_limit_makes_the_run_incomplete(make_world: Worlds) -> None:
    """The run does not fail, since the context length of the model is not exceeded."""
    script = replace(text_script("Hi"), prompt_tokens=256 + 1)
    world = make_world(ScriptedTurns(lambda _: script))
    thread = await world.thread("one", "two")
    async with world.process().run_jobs() as process:
        ended, _ = await execute_run(
            process, await world.assistant(), thread, max_prompt_tokens=256
        )

    assert ended.state is RunState.INCOMPLETE
    assert ended.incomplete_reason is IncompleteReason.MAX_PROMPT_TOKENS
    assert ended.error is None


@pytest.mark.parametrize("num_messages", [3, 7])
async def test_a_prompt_limit_does_not_truncate_for_other_runs(
    make_world: Worlds, num_messages: int
) -> None:
    """The next run is shown all of the thread again, or all that fits into the context."""

    def model(request: TurnRequest) -> Script:
        length = len(split_words(request.messages))
        if length > 600:
            raise ContextLengthExceeded(field="messages", prompt_tokens=length, context_tokens=600)
        return replace(text_script("Hi"), prompt_tokens=length)

    turns = ScriptedTurns(model)
    world = make_world(turns)
    assistant = await world.assistant()
    thread = await world.thread(*("word " * 100 for _ in range(num_messages)))
    num_words = []
    async with world.process(counter=WordCounter()).run_jobs() as process:
        for options in ({"max_prompt_tokens": 256}, {}):
            ended, _ = await execute_run(process, assistant, thread, **options)
            assert ended.state is RunState.COMPLETED
            num_words.append(len(split_words(turns.requests[-1].messages)))

    assert num_words == [100, 301]


@on_sqlite
async def test_runs_with_the_same_limit_are_rarely_truncated(make_world: Worlds) -> None:
    """A run begins where the previous run with the same limit was truncated."""
    turns = ScriptedTurns(
        lambda request: replace(text_script("Hi"), prompt_tokens=len(split_words(request.messages)))
    )
    world = make_world(turns)
    assistant, thread = await world.assistant(), await world.thread()
    prompts: list[list[str]] = []
    async with world.process(counter=WordCounter()).run_jobs() as process:
        for number in range(20):
            await world.add_messages(thread.id, f"question {number} " + "word " * 28)
            ended, _ = await execute_run(process, assistant, thread, max_prompt_tokens=256)
            assert ended.state is RunState.COMPLETED
            prompts.append(split_words(turns.requests[-1].messages))
        await execute_run(process, assistant, thread)

    cuts = [later for earlier, later in pairwise(prompts) if later[: len(earlier)] != earlier]
    assert 0 < len(cuts) <= 20 * 31 // (256 // 2) + 1
    assert len(split_words(turns.requests[-1].messages)) == 20 * 31


class Reads:
    """Counts statements on the tables of threads and runs, and their rows. Statements on jobs and
    streams depend on timing."""

    def __init__(self) -> None:
        self.statements: Counter[str] = Counter()
        self.num_rows = 0

    def __call__(self, _connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        """Count a statement. Both drivers have fetched all its rows."""
        if THREAD_TABLES.search(statement):
            self.statements[statement] += 1
            self.num_rows += len(cursor._rows)


@contextmanager
def count_reads() -> Iterator[Reads]:
    """Count the statements within the context."""
    reads = Reads()
    sa.event.listen(Engine, "after_cursor_execute", reads)
    try:
        yield reads
    finally:
        sa.event.remove(Engine, "after_cursor_execute", reads)


@pytest.mark.parametrize("count", [1, 10])
async def test_a_last_messages_limit_reads_the_same_rows_for_any_thread_length(
    make_world: Worlds, count: int
) -> None:
    """A thread of 1000 messages causes the same statements and reads as many rows as one of 10."""
    turns = ScriptedTurns(lambda _: text_script("Yes"))
    world = make_world(turns)
    assistant = await world.assistant()
    short_and_long: list[Reads] = []
    for length in (10, 1000):
        thread = await world.thread(*(f"number {number}" for number in range(length)))
        async with world.process(f"of {length}").run_jobs() as process:
            with count_reads() as reads:
                truncation = Truncation(last_messages=count)
                await execute_run(process, assistant, thread, truncation=truncation)
        users = [m for m in turns.requests[-1].messages if m.role is TurnRole.USER]
        assert len(users) == count
        short_and_long.append(reads)

    short, long = short_and_long
    assert (short.statements, short.num_rows) == (long.statements, long.num_rows)
    assert any(statement.startswith("SELECT") for statement in short.statements)
