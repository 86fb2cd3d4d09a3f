"""A frontend that follows: whatever is wanted, in any order, with or without control."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from svc_kit.errors import (
    AdapterBaseMismatch,
    AdapterCrashedEngine,
    AdapterDigestMismatch,
    EngineRestarting,
)
from tests.support.desired import FakeControl, Frontend, wanted


@asynccontextmanager
async def following(folder: Path, control: FakeControl) -> AsyncIterator[Frontend]:
    """A frontend that runs; its files are closed at the end."""
    frontend = Frontend(folder, control)
    await frontend.follower.load_saved()
    running = asyncio.create_task(frontend.follower.run())
    try:
        yield frontend
    finally:
        running.cancel()
        await asyncio.wait([running])
        frontend.catalog.close()


@pytest.fixture
async def control() -> FakeControl:
    """Nothing is wanted yet."""
    return FakeControl()


async def test_what_is_wanted_is_fetched_loaded_and_reported(
    tmp_path: Path, control: FakeControl
) -> None:
    """For its project alone; and unloaded when it is wanted no more."""
    async with following(tmp_path, control) as frontend:
        control.want(wanted("1", default_scale=0.5, standing_scale=0.25))
        await frontend.until(lambda: frontend.states() == [("READY", "")])
        voice = frontend.voice()
        assert voice is not None
        assert (voice.model, voice.default_scale, voice.standing_scale) == ("a", 0.5, 0.25)
        assert frontend.voice("other") is None
        control.want()
        await frontend.until(lambda: frontend.voice() is None)
        await frontend.until(lambda: frontend.states() == [])


async def test_scales_change_without_a_load(tmp_path: Path, control: FakeControl) -> None:
    """New bytes are a new generation; another model is a load of its own."""
    async with following(tmp_path, control) as frontend:
        control.want(wanted("1"))
        await frontend.until(lambda: frontend.states() == [("READY", "")])
        first = frontend.voice()
        assert first is not None
        control.want(wanted("1", default_scale=0.5))
        await frontend.until(lambda: first.default_scale == 0.5)
        assert len(frontend.loading.orders) == 1
        control.want(wanted("1", b"other"), content=b"other")
        await frontend.until(lambda: frontend.voice() is not first)
        control.want(wanted("1", b"other", model="b"))
        await frontend.until(lambda: getattr(frontend.voice(), "model", "") == "b")

        assert [order.model for order in frontend.loading.orders] == ["a", "a", "b"]
        assert control.downloads == 2


async def test_a_failure_is_reported_until_something_changes(
    tmp_path: Path, control: FakeControl
) -> None:
    """It is not tried again by itself; the old bytes stay where new ones fail."""
    bad = wanted("1", b"bad")
    async with following(tmp_path, control) as frontend:
        frontend.loading.errors[bad.digest] = AdapterBaseMismatch(adapter="voice", problem="it")
        control.want(wanted("1"))
        await frontend.until(lambda: frontend.states() == [("READY", "")])
        before = frontend.voice()
        control.want(bad, wanted("2", name="two"), content=b"bad")
        await frontend.until(
            lambda: frontend.states() == [("FAILED", "ADAPTER_BASE_MISMATCH"), ("READY", "")]
        )
        assert frontend.voice() is before
        assert len(frontend.loading.orders) == 3
        frontend.loading.errors.clear()
        control.want(wanted("1", b"bad", attempt=1))
        await frontend.until(lambda: frontend.states() == [("READY", "")])
        assert frontend.voice() is not before


async def test_nothing_is_remembered_of_what_fails_when_it_has_gone(
    tmp_path: Path, control: FakeControl
) -> None:
    """It was being loaded when it was deleted."""
    asked = wanted("1")
    async with following(tmp_path, control) as frontend:
        frontend.loading.gate.clear()
        frontend.loading.errors[asked.digest] = AdapterBaseMismatch(adapter="voice", problem="it")
        control.want(asked)
        await frontend.until(lambda: len(frontend.loading.orders) == 1)
        control.want()
        await frontend.until(lambda: frontend.follower._state.revision == "2")
        frontend.loading.gate.set()
        await frontend.until(lambda: not frontend.follower._working)

        assert not frontend.follower._failures


@pytest.mark.parametrize(
    "error",
    [
        EngineRestarting(retry_after=0.1),
        AdapterDigestMismatch(adapter="voice", expected="a", actual="b"),
    ],
)
async def test_what_passes_is_tried_again(
    tmp_path: Path, control: FakeControl, error: EngineRestarting
) -> None:
    """An engine that is away, a file that is damaged."""
    asked = wanted("1")
    async with following(tmp_path, control) as frontend:
        frontend.loading.errors[asked.digest] = error
        control.want(asked)
        await frontend.until(lambda: frontend.states() == [("FETCHING", error.reason)])
        frontend.loading.errors.clear()
        await frontend.until(lambda: frontend.states() == [("READY", "")])


async def test_without_control_a_frontend_loads_what_it_has(
    tmp_path: Path, control: FakeControl
) -> None:
    """Before it serves; and follows when control is back."""
    async with following(tmp_path, control) as frontend:
        control.want(wanted("1"))
        await frontend.until(lambda: frontend.states() == [("READY", "")])
    control.is_away = True
    async with following(tmp_path, control) as again:
        assert again.voice() is not None
        assert control.downloads == 1
        control.is_away = False
        control.want()
        await again.until(lambda: again.voice() is None)


async def test_bytes_that_control_cannot_send_yet_are_asked_for_again(
    tmp_path: Path, control: FakeControl
) -> None:
    """It goes away between the state and the bytes."""
    async with following(tmp_path, control) as frontend:
        control.has_bytes = False
        control.want(wanted("1"))
        await frontend.until(lambda: frontend.states() == [("FETCHING", "UPSTREAM_UNAVAILABLE")])
        control.has_bytes = True
        await frontend.until(lambda: frontend.states() == [("READY", "")])


async def test_what_an_engine_died_of_is_loaded_when_somebody_asks(
    tmp_path: Path, control: FakeControl
) -> None:
    """Neither by this frontend nor by the next one, until then."""
    asked = wanted("1")
    async with following(tmp_path, control) as frontend:
        frontend.load_marker.begin(asked.digest)
        frontend.load_marker.blame(asked.digest)
        control.want(asked)
        await frontend.until(lambda: frontend.states() == [("FAILED", AdapterCrashedEngine.reason)])
    async with following(tmp_path, control) as again:
        await again.until(lambda: again.states() == [("FAILED", AdapterCrashedEngine.reason)])
        assert again.loading.orders == []
        control.want(wanted("1", attempt=1))
        await again.until(lambda: again.states() == [("READY", "")])


async def test_a_name_that_is_registered_again_waits_for_the_one_before(
    tmp_path: Path, control: FakeControl
) -> None:
    """Though that is still being loaded when it is deleted, and has the same bytes."""
    async with following(tmp_path, control) as frontend:
        frontend.loading.gate.clear()
        control.want(wanted("1"))
        await frontend.until(lambda: len(frontend.loading.orders) == 1)
        control.want(wanted("2", default_scale=2.0))
        await frontend.until(lambda: frontend.follower._state.revision == "2")
        frontend.loading.gate.set()
        await frontend.until(lambda: getattr(frontend.voice(), "default_scale", 0) == 2.0)

        assert list(frontend.follower._installed) == ["2"]
