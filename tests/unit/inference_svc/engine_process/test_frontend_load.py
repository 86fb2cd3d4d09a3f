"""Tokens are sent together while the frontend's thread waits for cores, or does not read."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_svc.engine_process.frontend_load import (
    BUSY_SHARE,
    WAITING_SHARE,
    WINDOW_S,
    FrontendLoad,
    ThreadTimes,
)

WINDOW_NS = round(WINDOW_S * 1e9)


class Thread:
    """The times of a thread that runs and waits for the same shares of each window."""

    def __init__(self, run: float, waited: float) -> None:
        self._shares = run, waited
        self.now = 0

    def times(self) -> tuple[int, int]:
        run, waited = (round(share * self.now) for share in self._shares)
        return run, waited

    def clock(self) -> int:
        return self.now

    def load(self, *, has_unread: bool = False) -> FrontendLoad:
        return FrontendLoad(lambda: has_unread, self.times, self.clock)


@pytest.mark.parametrize(
    ("run", "waited", "is_behind"),
    [
        pytest.param(0.3, 0.5, True, id="it waits most of the time"),
        pytest.param(BUSY_SHARE - WAITING_SHARE, WAITING_SHARE, True, id="both limits are reached"),
        pytest.param(0.95, 0.0, False, id="it has a core for itself"),
        pytest.param(0.05, 0.2, False, id="it seldom has anything to do"),
        pytest.param(0.0, 0.0, False, id="it sleeps, or the kernel tells nothing"),
    ],
)
def test_it_is_behind_while_it_waits_for_cores(run: float, waited: float, is_behind: bool) -> None:
    thread = Thread(run, waited)
    load = thread.load()
    thread.now += WINDOW_NS

    assert load.is_behind() is is_behind


def test_only_whole_windows_are_measured() -> None:
    """A thread that has just waited a little is not one that lacks cores."""
    thread = Thread(0.3, 0.5)
    load = thread.load()
    thread.now += WINDOW_NS - 1

    assert not load.is_behind()


def test_it_is_no_longer_behind_once_it_has_cores() -> None:
    windows: Iterator[tuple[int, int]] = iter([(0, 0), (0, WINDOW_NS), (1, WINDOW_NS)])
    thread = Thread(0, 0)
    load = FrontendLoad(lambda: False, lambda: next(windows), thread.clock)

    thread.now += WINDOW_NS
    assert load.is_behind()
    thread.now += WINDOW_NS
    assert not load.is_behind()


def test_what_it_has_not_read_needs_no_measurement() -> None:
    assert Thread(0.0, 0.0).load(has_unread=True).is_behind()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux alone tells it")
def test_the_kernel_tells_how_long_a_thread_ran() -> None:
    times = ThreadTimes(os.getpid())
    before = times()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass

    assert times()[0] - before[0] > 0.01e9


def test_a_process_that_has_ended_is_not_behind() -> None:
    assert ThreadTimes(2**30)() == (0, 0)
