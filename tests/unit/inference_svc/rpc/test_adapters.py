"""Refused loads: a name that another model got in the meantime, and a missing file."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.model_pool.catalog import Catalog, ModelEntry
from inference_svc.rpc.adapters import AdapterOrder, AdapterService
from svc_kit.errors import AdapterExists, InvalidField
from svc_kit.lifecycle import StartupError
from tests.support.pooled import make_entry, settle


class MeetingJobs:
    """Finds every adapter good, once two of them are examined."""

    def __init__(self) -> None:
        self._both = asyncio.Barrier(2)
        self.are_done = asyncio.Event()

    async def run(self, job: object, payload: dict[str, Any], *, key: str = "") -> Any:
        """What an adapter's description is made of."""
        await self._both.wait()
        self.are_done.set()
        return {"rank": 8, "size_bytes": 100, "title": ""}


class SlowEngine:
    """Loads an adapter when it may, whether somebody waits for it or not."""

    state = EngineState.SERVING

    def __init__(self, entry: ModelEntry, may_load: asyncio.Event) -> None:
        self._known = entry
        self._may_load = may_load
        self.is_asked = False

    async def load_adapter(self, adapter: Adapter) -> Adapter:
        """The adapter has its name from now on."""
        self.is_asked = True
        return await asyncio.shield(self._load(adapter))

    async def _load(self, adapter: Adapter) -> Adapter:
        await self._may_load.wait()
        return self._known.adapters.add(adapter)


@pytest.mark.parametrize("goes_away", [False, True])
async def test_one_name_is_given_to_one_model(tmp_path: Path, goes_away: bool) -> None:
    """Also where whoever was first does not wait for the engine's answer."""
    (tmp_path / "voice.gguf").write_text("weights")
    catalog, may_load = Catalog([make_entry("a"), make_entry("b")]), asyncio.Event()
    engines = [SlowEngine(entry, may_load) for entry in catalog]
    for entry, engine in zip(catalog, engines, strict=True):
        entry.engine = cast(EngineClient, engine)
    jobs = MeetingJobs()
    loading = AdapterService(catalog, jobs, [tmp_path], tmp_path)
    orders = [AdapterOrder("voice", name, "voice.gguf") for name in "ab"]
    calls = [asyncio.create_task(loading.load(order)) for order in orders]
    await jobs.are_done.wait()
    await settle()
    assert sorted(engine.is_asked for engine in engines) == [False, True]
    first = [engine.is_asked for engine in engines].index(True)
    if goes_away:
        calls[first].cancel()
        await settle()
    may_load.set()

    with pytest.raises(AdapterExists):
        await calls[1 - first]
    await asyncio.wait(calls)
    (named,) = (each for entry in catalog for each in entry.adapters.current())
    assert named.model == "ab"[first]
    named.file.close()


async def test_a_file_that_is_not_there_is_missed_where_it_may_lie(tmp_path: Path) -> None:
    """At the start that is anywhere; what callers name, in the operator's folders only."""
    loading = AdapterService(Catalog([make_entry("a")]), MeetingJobs(), [tmp_path], tmp_path)
    at_start = AdapterOrder("voice", "a", "/away/voice.gguf", from_anywhere=True)

    with pytest.raises(StartupError, match=r"'voice' \(/away/voice.gguf\): .*no such file$"):
        await loading.load_all([at_start])
    with pytest.raises(InvalidField, match="no such file in the folders from which adapters"):
        await loading.load(AdapterOrder("voice", "a", "voice.gguf"))
