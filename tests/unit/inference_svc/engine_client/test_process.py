"""Tests of the malloc tunables of an engine process, and of its restarts."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from inference_svc.engine_client.process import (
    ChildProcess,
    StartFailed,
    SupervisedProcess,
    with_malloc_tunables,
)
from svc_kit.lifecycle import StartupError
from tests.support.pooled import settle

HUGE = "glibc.malloc.hugetlb=1"
LARGE = "glibc.malloc.mmap_threshold=1048576:glibc.malloc.trim_threshold=67108864"


def test_tunables_are_added_to_the_environment() -> None:
    """Other variables and tunables are kept."""
    assert with_malloc_tunables({"HOME": "/"}) == {"HOME": "/", "GLIBC_TUNABLES": f"{HUGE}:{LARGE}"}

    others = with_malloc_tunables({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
    assert others == {"GLIBC_TUNABLES": f"glibc.malloc.arena_max=2:{HUGE}:{LARGE}"}


def test_a_tunable_set_by_the_operator_is_kept() -> None:
    """For example to disable huge pages."""
    result = with_malloc_tunables({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"})

    assert result == {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb=0:{LARGE}"}
    assert with_malloc_tunables(result) == result


class Children:
    """Starts processes that do nothing; tests send messages and exit codes of the last one."""

    def __init__(self) -> None:
        self.count = 0
        self.starts = asyncio.Queue[int]()
        self.downs: list[tuple[bool, float]] = []
        self.send: Callable[[object], None]
        self.end: Callable[[int], None]
        self.process = SupervisedProcess[str, str](
            "the child",
            "m",
            self.spawn,
            early_exit="it ended early",
            on_message=lambda _: self.process.mark_up(),
            on_down=lambda *down: self.downs.append(down),
        )

    def spawn(
        self, *, on_message: Callable[[object], None], on_exit: Callable[[int], None]
    ) -> ChildProcess[Any, str]:
        self.count += 1
        self.send, self.end = on_message, on_exit
        self.starts.put_nowait(self.count)
        return cast(ChildProcess[Any, str], self)

    async def close(self) -> None:
        """Do nothing."""


async def test_a_process_that_ends_again_and_again_is_started_after_longer_pauses() -> None:
    """At once after the first exit; one that was not up yet has ended early too."""
    children = Children()
    start = asyncio.create_task(children.process.start())
    await settle()
    children.send("ready")
    await start
    children.end(-9)
    await settle()
    children.end(-9)
    await children.process.close()

    assert children.downs == [(True, 0.0), (False, 0.5)]
    assert (children.count, children.process.restarts) == (2, 2)


@pytest.mark.parametrize(
    ("message", "problem"),
    [(StartFailed("no weights"), "no weights"), (None, r"it ended early \(signal SIGSEGV\)")],
)
async def test_a_process_that_fails_at_its_first_start_is_not_started_again(
    message: StartFailed | None, problem: str
) -> None:
    """The error has its own reason, or else its exit code."""
    children = Children()
    start = asyncio.create_task(children.process.start())
    await settle()
    if message is not None:
        children.send(message)
    children.end(-11)
    await settle()

    with pytest.raises(StartupError, match=problem):
        await start
    assert (children.count, children.downs) == (1, [])


async def test_a_process_that_is_killed_in_its_first_start_is_started_again() -> None:
    """Three times: what it loads is not to blame, but the memory may not suffice for it."""
    children = Children()
    start = asyncio.create_task(children.process.start())
    await settle()
    children.end(-9)
    await settle()
    children.send("ready")
    await start

    assert (children.count, children.process.is_up, children.downs) == (2, True, [])


async def test_a_first_start_that_is_always_killed_fails() -> None:
    """Later, since the pauses grow."""
    children = Children()
    start = asyncio.create_task(children.process.start())
    await settle()
    while await children.starts.get() < 3:
        children.end(-9)
    children.end(-9)

    with pytest.raises(StartupError, match="SIGKILL"):
        await start
    assert children.count == 3
