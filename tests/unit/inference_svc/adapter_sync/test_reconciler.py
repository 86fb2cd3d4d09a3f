"""Tests of reconciling a frontend with the desired state, with and without the control service."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inference_svc.adapter_sync.state import DesiredState
from svc_kit.auth.principal import Principal, set_principal
from svc_kit.errors import (
    AdapterBaseMismatch,
    AdapterCrashedEngine,
    AdapterDigestMismatch,
    AdapterExists,
    EngineRestarting,
    ModelLoading,
    ModelNotFound,
    UpstreamUnavailable,
)
from tests.support.desired import FakeControl, Frontend, make_desired


@asynccontextmanager
async def run_frontend(folder: Path, control: FakeControl) -> AsyncIterator[Frontend]:
    """Run a frontend, for a caller of project "mine"; close its files at the end."""
    set_principal(Principal(project="mine", scopes=frozenset(), key_id=""))
    frontend = Frontend(folder, control)
    await frontend.reconciler.load_saved()
    running = asyncio.create_task(frontend.reconciler.run("host:1"))
    try:
        yield frontend
    finally:
        running.cancel()
        await asyncio.wait([running])
        frontend.catalog.close()


@pytest.fixture
async def control() -> FakeControl:
    """Without a desired state."""
    return FakeControl()


async def test_a_desired_adapter_is_downloaded_loaded_and_reported(
    tmp_path: Path, control: FakeControl
) -> None:
    """For its project only; it is unloaded when it is no longer desired."""
    async with run_frontend(tmp_path, control) as frontend:
        control.set_desired(make_desired("1", default_scale=0.5, standing_scale=0.25))
        await frontend.wait_for(lambda: frontend.states() == [("READY", "")])
        voice = frontend.find()
        assert voice is not None
        assert (voice.model, voice.default_scale, voice.standing_scale) == ("a", 0.5, 0.25)
        assert frontend.find("other") is None
        control.set_desired()
        await frontend.wait_for(lambda: frontend.find() is None)
        await frontend.wait_for(lambda: frontend.states() == [])


async def test_a_model_cannot_get_the_name_of_a_registered_adapter(
    tmp_path: Path, control: FakeControl
) -> None:
    """Also while the adapter cannot be loaded, and after a restart without the control service."""
    desired = make_desired("1")
    async with run_frontend(tmp_path, control) as frontend:
        frontend.loader.errors[desired.digest] = AdapterBaseMismatch(adapter="voice", problem="no")
        control.set_desired(desired)
        await frontend.wait_for(lambda: [state for state, _ in frontend.states()] == ["FAILED"])
        with pytest.raises(AdapterExists):
            frontend.catalog.check_free("voice")
    async with run_frontend(tmp_path, FakeControl()) as restarted:
        with pytest.raises(AdapterExists):
            restarted.catalog.check_free("voice")


async def test_a_removal_is_reported_when_it_is_done(tmp_path: Path, control: FakeControl) -> None:
    """Also that of an adapter which is still being loaded: the revision is not reported before."""
    async with run_frontend(tmp_path, control) as frontend:
        frontend.loader.gate.clear()
        control.set_desired(make_desired("1"))
        await frontend.wait_for(lambda: bool(frontend.loader.orders) and control.followed == "1")
        control.set_desired()
        await frontend.wait_for(lambda: frontend.states() == [])
        assert control.followed == "1"
        frontend.loader.gate.set()
        await frontend.wait_for(lambda: control.followed == "2")

        assert frontend.find() is None


async def test_scales_change_without_a_load(tmp_path: Path, control: FakeControl) -> None:
    """New bytes are a new generation; another model requires a new load."""
    async with run_frontend(tmp_path, control) as frontend:
        control.set_desired(make_desired("1"))
        await frontend.wait_for(lambda: frontend.states() == [("READY", "")])
        first = frontend.find()
        assert first is not None
        control.set_desired(make_desired("1", default_scale=0.5))
        await frontend.wait_for(lambda: first.default_scale == 0.5)
        assert len(frontend.loader.orders) == 1
        control.set_desired(make_desired("1", b"other"), content=b"other")
        await frontend.wait_for(lambda: frontend.find() is not first)
        control.set_desired(make_desired("1", b"other", model="b"))
        await frontend.wait_for(lambda: getattr(frontend.find(), "model", "") == "b")

        assert [order.model for order in frontend.loader.orders] == ["a", "a", "b"]
        assert control.downloads == 2


async def test_a_failure_is_reported_until_something_changes(
    tmp_path: Path, control: FakeControl
) -> None:
    """It is not retried; the old adapter stays if the load of a new file fails."""
    bad = make_desired("1", b"bad")
    async with run_frontend(tmp_path, control) as frontend:
        frontend.loader.errors[bad.digest] = AdapterBaseMismatch(adapter="voice", problem="it")
        control.set_desired(make_desired("1"))
        await frontend.wait_for(lambda: frontend.states() == [("READY", "")])
        before = frontend.find()
        control.set_desired(bad, make_desired("2", name="two"), content=b"bad")
        await frontend.wait_for(
            lambda: frontend.states() == [("FAILED", "ADAPTER_BASE_MISMATCH"), ("READY", "")]
        )
        assert frontend.find() is before
        assert len(frontend.loader.orders) == 3
        frontend.loader.errors.clear()
        control.set_desired(make_desired("1", b"bad", attempt=1))
        await frontend.wait_for(lambda: frontend.states() == [("READY", "")])
        assert frontend.find() is not before


async def test_a_failure_of_a_deleted_adapter_is_not_stored(
    tmp_path: Path, control: FakeControl
) -> None:
    desired = make_desired("1")
    async with run_frontend(tmp_path, control) as frontend:
        frontend.loader.gate.clear()
        frontend.loader.errors[desired.digest] = AdapterBaseMismatch(adapter="voice", problem="it")
        control.set_desired(desired)
        await frontend.wait_for(lambda: len(frontend.loader.orders) == 1)
        control.set_desired()
        await frontend.wait_for(lambda: frontend.reconciler._state.revision == "2")
        frontend.loader.gate.set()
        await frontend.wait_for(lambda: not frontend.reconciler._tasks)

        assert not frontend.reconciler._failures


@pytest.mark.parametrize(
    "error",
    [
        EngineRestarting(retry_after=0.1),
        AdapterDigestMismatch(adapter="voice", expected="a", actual="b"),
    ],
)
async def test_temporary_failures_are_retried(
    tmp_path: Path, control: FakeControl, error: EngineRestarting
) -> None:
    """Such as an engine that restarts or a damaged file."""
    desired = make_desired("1")
    async with run_frontend(tmp_path, control) as frontend:
        frontend.loader.errors[desired.digest] = error
        control.set_desired(desired)
        await frontend.wait_for(lambda: frontend.states() == [("FETCHING", error.reason)])
        frontend.loader.errors.clear()
        await frontend.wait_for(lambda: frontend.states() == [("READY", "")])


async def test_cached_adapters_are_loaded_without_the_control_service(
    tmp_path: Path, control: FakeControl
) -> None:
    """Before the frontend serves; it reconciles when the control service is back."""
    async with run_frontend(tmp_path, control) as frontend:
        control.set_desired(make_desired("1"))
        await frontend.wait_for(lambda: frontend.states() == [("READY", "")])
    control.is_down = True
    async with run_frontend(tmp_path, control) as second:
        assert second.find() is not None
        assert control.downloads == 1
        control.is_down = False
        control.set_desired()
        await second.wait_for(lambda: second.find() is None)


async def test_a_failed_download_is_retried(tmp_path: Path, control: FakeControl) -> None:
    """The control service ends between the state and the file."""
    async with run_frontend(tmp_path, control) as frontend:
        control.has_bytes = False
        control.set_desired(make_desired("1"))
        await frontend.wait_for(lambda: frontend.states() == [("FETCHING", "UPSTREAM_UNAVAILABLE")])
        control.has_bytes = True
        await frontend.wait_for(lambda: frontend.states() == [("READY", "")])


async def test_an_adapter_that_crashed_an_engine_is_loaded_only_on_request(
    tmp_path: Path, control: FakeControl
) -> None:
    """Also after a restart of the frontend."""
    desired = make_desired("1")
    async with run_frontend(tmp_path, control) as frontend:
        frontend.crash_marker.begin(desired.digest)
        frontend.crash_marker.blame(desired.digest)
        control.set_desired(desired)
        await frontend.wait_for(
            lambda: frontend.states() == [("FAILED", AdapterCrashedEngine.reason)]
        )
    async with run_frontend(tmp_path, control) as second:
        await second.wait_for(lambda: second.states() == [("FAILED", AdapterCrashedEngine.reason)])
        assert second.loader.orders == []
        control.set_desired(make_desired("1", attempt=1))
        await second.wait_for(lambda: second.states() == [("READY", "")])


async def test_an_adapter_that_reuses_a_name_waits_for_the_previous_one(
    tmp_path: Path, control: FakeControl
) -> None:
    """That one is still loading when it is deleted, and has the same bytes."""
    async with run_frontend(tmp_path, control) as frontend:
        frontend.loader.gate.clear()
        control.set_desired(make_desired("1"))
        await frontend.wait_for(lambda: len(frontend.loader.orders) == 1)
        control.set_desired(make_desired("2", default_scale=2.0))
        await frontend.wait_for(lambda: frontend.reconciler._state.revision == "2")
        frontend.loader.gate.set()
        await frontend.wait_for(lambda: getattr(frontend.find(), "default_scale", 0) == 2.0)

        assert list(frontend.reconciler._installed) == ["2"]


# --- models that are not known --------------------------------------------------------------------

UNKNOWN = ModelNotFound(model="voice")


class PausedControl(FakeControl):
    """Its followed process has stopped; another one knows `registered`."""

    def __init__(self) -> None:
        super().__init__()
        self.registered = DesiredState()
        self.num_lookups = 0
        self.is_followed = False

    async def watch(self, state: DesiredState) -> AsyncGenerator[DesiredState, None]:
        """The first call is that of the reconciler; later ones ask what is registered now."""
        if not self.is_followed:
            self.is_followed = True
            async for each in super().watch(state):
                yield each
        self._check()
        self.num_lookups += 1
        yield self.registered


async def test_an_adapter_that_is_registered_but_not_here_can_be_retried(tmp_path: Path) -> None:
    """Whether it is being loaded, or the followed process has not sent it; another project's is
    not found."""
    control = PausedControl()
    async with run_frontend(tmp_path, control) as frontend:
        explain = frontend.reconciler.map_error
        await frontend.wait_for(lambda: control.is_followed)
        unknown = await explain(UNKNOWN)
        control.registered = DesiredState("9", {"1": make_desired("1")})
        registered = await explain(UNKNOWN)
        frontend.loader.gate.clear()
        control.set_desired(make_desired("1"), make_desired("2", project="other", name="theirs"))
        await frontend.wait_for(lambda: bool(frontend.loader.orders))
        loading = await explain(UNKNOWN)
        foreign = await explain(ModelNotFound(model="theirs"))
        frontend.loader.gate.set()

    assert unknown is UNKNOWN
    assert registered == loading == ModelLoading(model="voice")
    assert foreign == ModelNotFound(model="theirs")


async def test_an_adapter_that_cannot_be_loaded_is_not_found(
    tmp_path: Path, control: FakeControl
) -> None:
    """A retry would not help. Its state has the reason."""
    async with run_frontend(tmp_path, control) as frontend:
        desired = make_desired("1")
        mismatch = AdapterBaseMismatch(adapter="voice", problem="wrong base")
        frontend.loader.errors[desired.digest] = mismatch
        control.set_desired(desired)
        await frontend.wait_for(lambda: frontend.states() == [("FAILED", mismatch.reason)])

        assert await frontend.reconciler.map_error(UNKNOWN) is UNKNOWN


async def test_nobody_knows_while_control_is_away(tmp_path: Path) -> None:
    """The caller may retry. What cannot be the name of an adapter is not looked up."""
    control = PausedControl()
    async with run_frontend(tmp_path, control) as frontend:
        explain = frontend.reconciler.map_error
        await frontend.wait_for(lambda: control.is_followed)
        answers = await asyncio.gather(*(explain(UNKNOWN) for _ in range(50)))
        num_lookups = control.num_lookups
        control.is_down = True
        away = await explain(UNKNOWN)
        invalid = ModelNotFound(model="no such/name")
        other = EngineRestarting()
        same = [await explain(error) for error in (invalid, other)]

    assert set(answers) == {UNKNOWN}
    assert num_lookups <= 2  # one that ran already, and one for all who asked meanwhile
    assert away == UpstreamUnavailable(service="control")
    assert same == [invalid, other]
