"""Tails with two writers in one process: a stale one that lost its job, and the current one."""

import asyncio
from contextlib import ExitStack

import pytest

from control_svc.event_log.model import Event, StreamKey
from control_svc.event_log.tail_cache import Tail, Tails

KEY = StreamKey("p", "run_1")


@pytest.fixture
def tails() -> Tails:
    return Tails()


def open_writer(tails: Tails) -> tuple[Tail, ExitStack]:
    """Open a writer; return its tail and the stack that closes it."""
    stack = ExitStack()
    return stack.enter_context(tails.open_for_writer(KEY, 0)), stack


def test_the_tail_stays_live_when_the_stale_writer_closes(tails: Tails) -> None:
    """Readers get the events of the current writer from memory."""
    with tails.open_for_reader(KEY, asyncio.Event()) as tail:
        _, stale = open_writer(tails)
        current_tail, current = open_writer(tails)
        stale.close()
        current_tail.add([Event(0, b"a")])
        batch = tail.read_from(0)
        current.close()

    assert batch is not None
    assert batch.events == [Event(0, b"a")]


def test_the_tail_is_not_live_once_the_current_writer_closes(tails: Tails) -> None:
    """The stale writer, still open, does not see what other processes commit."""
    with tails.open_for_reader(KEY, asyncio.Event()) as tail:
        _, stale = open_writer(tails)
        _, current = open_writer(tails)
        current.close()
        before = tail.read_from(0)
        stale.close()

        assert before is tail.read_from(0) is None


def test_the_end_of_a_stream_survives_its_writers(tails: Tails) -> None:
    """Readers see the end after either writer has closed."""
    with tails.open_for_reader(KEY, asyncio.Event()) as tail:
        _, stale = open_writer(tails)
        current_tail, current = open_writer(tails)
        current_tail.add([Event(0, b"a")], is_end=True)
        stale.close()
        first = tail.read_from(0)
        current.close()
        second = tail.read_from(0)

    assert first is not None
    assert first.is_end
    assert first == second


def test_a_stale_writer_does_not_remove_a_newer_tail(tails: Tails) -> None:
    """Its own tail has been removed already; readers find the new one."""
    _, stale = open_writer(tails)
    _, current = open_writer(tails)
    current.close()
    newest_tail, newest = open_writer(tails)
    stale.close()
    with tails.open_for_reader(KEY, asyncio.Event()) as tail:
        assert tail is newest_tail
    newest.close()


@pytest.mark.parametrize("is_stale_first", [True, False])
def test_unused_tails_are_removed(tails: Tails, is_stale_first: bool) -> None:
    """In whatever order the writers close."""
    first_tail, stale = open_writer(tails)
    _, current = open_writer(tails)
    for stack in (stale, current) if is_stale_first else (current, stale):
        stack.close()
    new_tail, stack = open_writer(tails)
    stack.close()

    assert new_tail is not first_tail
