"""Sharing of the cores with the process of an encoder, for which a sleeping one stands."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from inference_svc.engine.batch import TokenBatch
from inference_svc.engine.request import Command, ShareCores, Submit
from inference_svc.engine_process.encoder_signals import EncoderSignals
from inference_svc.engine_process.step_loop import StepLoop, _ReceivedCommand
from tests.support.fake_backend import FakeBackend
from tests.support.processes import sleeping_process
from tests.support.sequences import EngineBench, make_request


@pytest.fixture(name="encoder")
def start_encoder() -> Iterator[int]:
    with sleeping_process() as pid:
        yield pid


def wait_stopped(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def wait_continued(pid: int) -> None:
    """Return once the process, which was stopped, runs."""
    os.waitid(os.P_PID, pid, os.WCONTINUED)


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped, or will be as soon as it takes the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = int(status.partition("ShdPnd:")[2].split()[0], 16)
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return bool(pending >> (signal.SIGSTOP - 1) & 1) or state == "T"


def test_the_encoder_is_stopped_during_steps(encoder: int) -> None:
    """Also if it begins during one."""
    signals = EncoderSignals()
    signals.stop()
    signals.share(encoder)
    wait_stopped(encoder)
    signals.resume()
    wait_continued(encoder)
    signals.stop()
    wait_stopped(encoder)
    signals.resume()
    wait_continued(encoder)


def test_the_encoder_runs_after_the_end_of_sharing(encoder: int) -> None:
    """In the middle of a step, and in later ones."""
    signals = EncoderSignals()
    signals.share(encoder)
    signals.stop()
    wait_stopped(encoder)
    signals.reclaim()
    wait_continued(encoder)
    signals.stop()
    assert not is_stopped(encoder)
    assert not signals.is_encoding


def test_an_encoder_that_a_killed_engine_left_stopped_continues(encoder: int) -> None:
    """When the next engine shares its cores with it."""
    os.kill(encoder, signal.SIGSTOP)
    wait_stopped(encoder)
    EncoderSignals().share(encoder)
    wait_continued(encoder)


def test_an_encoder_that_has_ended_is_ignored(encoder: int) -> None:
    """Before sharing and during it."""
    signals = EncoderSignals()
    signals.share(encoder)
    os.kill(encoder, signal.SIGKILL)
    os.waitid(os.P_PID, encoder, os.WEXITED)  # as its parent does
    for _ in range(2):
        signals.stop()
        signals.resume()
        signals.share(encoder)
    signals.reclaim()


class Loop:
    """A step loop without a pipe. `on_call` is called in each decode call, which takes `seconds` of
    the engine's clock."""

    def __init__(self, on_call: Callable[[], object], seconds: float = 0.0) -> None:
        self._on_call = on_call
        self._seconds = seconds
        self._bench = EngineBench(FakeBackend(fails=self._decode), chunk_cap=8)
        self._loop = StepLoop(cast(Any, None), self._bench.engine)

    def _decode(self, _: TokenBatch) -> int:
        self._bench.clock.now += self._seconds
        self._on_call()
        return 0

    def send(self, command: Command) -> None:
        """Queue a command, which is applied after the current decode call or the next one."""
        self._loop._inbox.put(_ReceivedCommand(command, 0))

    def run_turn(self) -> None:
        """Receive commands and run a step."""
        self._loop._receive()
        self._loop.run_turn()


def test_the_encoder_runs_only_between_the_steps_of_streams(encoder: int) -> None:
    """It is stopped in decode calls, and continues after each step."""
    actions: list[Callable[[int], object]] = []
    loop = Loop(lambda: [action(encoder) for action in actions])
    loop.send(Submit(make_request(max_tokens=50)))
    loop.run_turn()
    loop.send(ShareCores(1, encoder))
    actions.append(wait_stopped)
    for _ in range(3):
        loop.run_turn()
        wait_continued(encoder)


def test_the_encoder_runs_while_only_prompts_are_computed(encoder: int) -> None:
    """Nobody waits for the next token."""
    was_stopped: list[bool] = []
    loop = Loop(lambda: was_stopped.append(is_stopped(encoder)))
    loop.send(ShareCores(1, encoder))
    for number in range(5):
        loop.send(Submit(make_request(number, prompt=[65] * 60, max_tokens=1)))
        loop.run_turn()

    assert was_stopped == [False] * 5


def test_a_pause_ends_with_the_encoding(encoder: int) -> None:
    """The next step begins at once, instead of an hour later."""
    actions: list[Callable[[int], object]] = []
    loop = Loop(lambda: [action(encoder) for action in actions], seconds=10_000.0)
    loop.send(Submit(make_request(max_tokens=50)))
    loop.run_turn()

    def end_encoding() -> None:
        wait_continued(encoder)
        loop.send(ShareCores(2, None))

    loop.send(ShareCores(1, encoder))
    actions.append(wait_stopped)
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(end_encoding)
        loop.run_turn()
        ended.result()
