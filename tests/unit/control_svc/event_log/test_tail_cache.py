"""Tails of streams with two writers here: one that has lost its job, and the one that goes on."""

import asyncio
from contextlib import ExitStack

import pytest

from control_svc.event_log.model import Event, StreamKey
from control_svc.event_log.tail_cache import Tail, Tails

KEY = StreamKey("p", "run_1")


@pytest.fixture
def tails() -> Tails:
    """Nothing is written or followed yet."""
    return Tails()


def written(tails: Tails, next_number: int = 0) -> tuple[Tail, ExitStack]:
    """A writer's tail, and what lets the writer go."""
    stack = ExitStack()
    return stack.enter_context(tails.open_for_writer(KEY, next_number)), stack


def test_a_late_writer_leaves_the_tail_to_the_one_that_goes_on(tails: Tails) -> None:
    """Followers are fed from memory before and after."""
    with tails.open_for_reader(KEY, asyncio.Event()) as followed:
        _, late = written(tails)
        going_on, ours = written(tails)
        late.close()
        going_on.add([Event(0, b"a")])
        news = followed.read_from(0)
        ours.close()

    assert news is not None
    assert news.events == [Event(0, b"a")]


def test_nothing_is_known_here_once_the_one_that_goes_on_has_left(tails: Tails) -> None:
    """The late writer, which is still here, says nothing of what others commit."""
    with tails.open_for_reader(KEY, asyncio.Event()) as followed:
        _, late = written(tails)
        _, ours = written(tails)
        ours.close()
        before = followed.read_from(0)
        late.close()

        assert before is followed.read_from(0) is None


def test_an_end_stays_the_end_when_a_late_writer_leaves(tails: Tails) -> None:
    """Whoever follows hears of it, also after both have gone."""
    with tails.open_for_reader(KEY, asyncio.Event()) as followed:
        _, late = written(tails)
        going_on, ours = written(tails)
        going_on.add([Event(0, b"a")], is_end=True)
        late.close()
        first = followed.read_from(0)
        ours.close()
        second = followed.read_from(0)

    assert first is not None
    assert first.is_end
    assert first == second


def test_a_late_writer_forgets_nobody_elses_tail(tails: Tails) -> None:
    """The one after it has gone, and so has their tail; followers find the next one's."""
    _, late = written(tails)
    _, ours = written(tails)
    ours.close()
    newest, next_one = written(tails)
    late.close()
    with tails.open_for_reader(KEY, asyncio.Event()) as followed:
        assert followed is newest
    next_one.close()


@pytest.mark.parametrize("is_late_first", [True, False])
def test_what_nobody_writes_or_follows_is_forgotten(tails: Tails, is_late_first: bool) -> None:
    """In whatever order its writers leave."""
    first, late = written(tails)
    _, ours = written(tails)
    for stack in (late, ours) if is_late_first else (ours, late):
        stack.close()
    again, stack = written(tails)
    stack.close()

    assert again is not first
