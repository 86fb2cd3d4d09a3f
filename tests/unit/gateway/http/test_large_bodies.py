"""Large bodies: turns of projects, threads and memory."""

import asyncio
import threading
from typing import Any

import pytest

from gateway.http.large_bodies import LargeBodies, convert, end_arrival, large_body, release
from svc_kit.errors import QueueFull
from svc_kit.logs import project_var

MIB = 2**20


async def test_only_large_bodies_are_converted_in_a_thread() -> None:
    """Small ones at once, which costs nothing."""
    here = threading.get_ident()
    at_once = await convert(threading.get_ident)
    large_body.set(LargeBodies(MIB, 1.0, MIB))

    assert at_once == here
    assert await convert(threading.get_ident) != here


async def test_large_bodies_are_converted_one_at_a_time_and_projects_in_turn() -> None:
    """A project with many of them does not delay another by all of them."""
    bodies, order, running = LargeBodies(MIB, 1.0, MIB), list[str](), threading.Lock()

    def work(project: str) -> None:
        is_alone = running.acquire(blocking=False)
        order.append(project if is_alone else "at once")
        running.release()

    async def convert_for(project: str) -> None:
        project_var.set(project)
        await bodies.convert(work, project)

    async with asyncio.TaskGroup() as group:
        for project in "aaaaab":
            group.create_task(convert_for(project))

    assert order.index("b") <= 2
    assert sorted(order) == [*"aaaaab"]


async def test_a_turn_lasts_until_its_thread_has_ended() -> None:
    """Also if the client has left, since a thread cannot be cancelled."""
    bodies = LargeBodies(MIB, 1.0, MIB)
    started, ending, order = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        started.set()
        ending.wait(20)
        order.append("left")

    leaving = asyncio.create_task(bodies.convert(work))
    await asyncio.to_thread(started.wait, 20)
    leaving.cancel()
    await asyncio.wait({leaving})
    following = asyncio.create_task(bodies.convert(order.append, "following"))
    # Longer than the pause after a turn that had ended with its caller.
    await asyncio.wait({following}, timeout=0.5)
    ending.set()
    await following

    assert leaving.cancelled()
    assert order == ["left", "following"]


async def test_a_project_waits_for_its_half_of_the_memory_while_another_gets_in() -> None:
    """It gets 429 if it waits too long; what a request reserved is released at its end."""
    bodies = LargeBodies(4 * MIB, 0.01, 4 * MIB)
    first, second, other = (dict[str, Any]() for _ in range(3))
    project_var.set("a")
    await bodies.reserve(first, 2 * MIB)
    with pytest.raises(QueueFull, match="bytes of large requests"):
        await bodies.reserve(second, MIB)
    release(second)
    project_var.set("b")
    await bodies.reserve(other, 2 * MIB)
    release(first)
    project_var.set("a")
    await bodies.reserve(second, 2 * MIB)

    assert first == {}
    assert second


async def test_few_bodies_of_a_project_arrive_at_once() -> None:
    """The next one waits until a call is accepted, although there is memory; others do not wait."""
    bodies = LargeBodies(8 * MIB, 0.01, MIB)
    first, second, other, frame = (dict[str, Any]() for _ in range(4))
    project_var.set("a")
    await bodies.reserve(first, MIB)
    with pytest.raises(QueueFull, match="4 requests that begin"):
        await bodies.reserve(second, MIB)
    await bodies.reserve(frame, MIB, arrives=False)
    project_var.set("b")
    await bodies.reserve(other, MIB)
    project_var.set("a")
    end_arrival(first)
    await bodies.reserve(second, MIB)
    release(second)
    await bodies.reserve(second, MIB)

    assert first
    assert second


async def begin_some(bodies: LargeBodies, project: str, number: int) -> list[dict[str, Any]]:
    project_var.set(project)
    scopes = [dict[str, Any]() for _ in range(number)]
    for scope in scopes:
        await bodies.begin(scope, 100)
    return scopes


async def test_few_requests_of_a_project_begin_at_once() -> None:
    """Others do not wait for them, and further ones until a call is accepted."""
    bodies = LargeBodies(8 * MIB, 0.01, MIB)
    first, *_ = await begin_some(bodies, "a", 4)
    with pytest.raises(QueueFull):
        await begin_some(bodies, "a", 1)
    await begin_some(bodies, "b", 4)
    end_arrival(first)

    assert await begin_some(bodies, "a", 1)
