"""Rejected loads: a name that another model has taken meanwhile, and a missing file."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.model_pool.catalog import Catalog, ModelEntry, PendingModel
from inference_svc.rpc.adapters import AdapterOrder, AdapterService
from svc_kit.errors import AdapterExists, InvalidField, ModelExists
from svc_kit.lifecycle import StartupError
from tests.support.pooled import make_entry, settle


class BarrierJobs:
    """Accepts every adapter once two of them are being examined."""

    def __init__(self) -> None:
        self._both = asyncio.Barrier(2)
        self.are_examined = asyncio.Event()

    async def run(self, job: object, payload: dict[str, Any], *, key: str = "") -> Any:
        await self._both.wait()
        self.are_examined.set()
        return {
            "architecture": "llama",
            "base_model": "",
            "rank": 8,
            "size_bytes": 100,
            "title": "",
        }


class SlowEngine:
    """Loads an adapter once `can_load` is set, even if the caller is cancelled."""

    state = EngineState.SERVING

    def __init__(self, entry: ModelEntry, can_load: asyncio.Event) -> None:
        self._entry = entry
        self._can_load = can_load
        self.is_called = False

    async def load_adapter(self, adapter: Adapter) -> Adapter:
        self.is_called = True
        return await asyncio.shield(self._load(adapter))

    async def _load(self, adapter: Adapter) -> Adapter:
        await self._can_load.wait()
        self._entry.adapters.add(adapter)
        return adapter


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_concurrent_loads_of_one_name_register_one_adapter(
    tmp_path: Path, is_cancelled: bool
) -> None:
    """Also if the first caller is cancelled before the engine has loaded it."""
    (tmp_path / "voice.gguf").write_text("weights")
    catalog, can_load = Catalog([make_entry("a"), make_entry("b")]), asyncio.Event()
    engines = [SlowEngine(entry, can_load) for entry in catalog]
    for entry, engine in zip(catalog, engines, strict=True):
        entry.engine = cast(EngineClient, engine)
    jobs = BarrierJobs()
    service = AdapterService(catalog, jobs, [tmp_path], tmp_path)
    requests = [AdapterOrder("voice", name, "voice.gguf") for name in "ab"]
    loads = [asyncio.create_task(service.load(request)) for request in requests]
    await jobs.are_examined.wait()
    await settle()
    assert sorted(engine.is_called for engine in engines) == [False, True]
    first = [engine.is_called for engine in engines].index(True)
    if is_cancelled:
        loads[first].cancel()
        await settle()
    can_load.set()

    with pytest.raises(AdapterExists):
        await loads[1 - first]
    await asyncio.wait(loads)
    (adapter,) = (loaded for entry in catalog for loaded in entry.adapters.current())
    assert adapter.model == "ab"[first]
    adapter.file.close()


@pytest.mark.parametrize("name", ["a", "other-name", "coming", "also-coming"])
async def test_an_adapter_cannot_have_the_name_of_a_model(tmp_path: Path, name: str) -> None:
    """Or an alias of one, also of one that is being downloaded: no request would reach it."""
    (tmp_path / "voice.gguf").write_text("weights")
    catalog = Catalog([make_entry("a")])
    catalog.add_alias(next(iter(catalog)), "other-name")
    catalog.pending["coming"] = PendingModel("coming", "hf:o/r", ("also-coming",))
    service = AdapterService(catalog, BarrierJobs(), [tmp_path], tmp_path)

    with pytest.raises(ModelExists, match=name):
        await service.load(AdapterOrder(name, "a", "voice.gguf"))


async def test_the_error_of_a_missing_file_depends_on_the_allowed_folders(tmp_path: Path) -> None:
    """At startup a file may be anywhere; callers may only use the configured folders."""
    service = AdapterService(Catalog([make_entry("a")]), BarrierJobs(), [tmp_path], tmp_path)
    at_start = AdapterOrder("voice", "a", "/away/voice.gguf", from_anywhere=True)

    with pytest.raises(StartupError, match=r"'voice' \(/away/voice.gguf\): .*no such file$"):
        await service.load_all([at_start])
    with pytest.raises(InvalidField, match="no such file in the folders from which adapters"):
        await service.load(AdapterOrder("voice", "a", "voice.gguf"))
