"""Tests of closing an engine client at inconvenient moments, with a process that does nothing."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from inference_svc.engine.events import AdapterLoadDone, DiskCacheLoad, TierLoad
from inference_svc.engine.request import ArchivePrefixes, Command
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.local_engine import LocalEngine
from inference_svc.engine_client.messages import (
    DeviceMemoryReport,
    EngineConfig,
    EngineMessage,
    ModelReady,
    Ready,
    SnapshotDone,
)
from inference_svc.engine_client.output_stream import ReaderLimits
from inference_svc.engine_client.process import ChildProcess
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.warmup import WarmUp
from inference_svc.models.device_memory import DeviceBytes
from inference_svc.snapshots.store import FolderUsage
from model_files.adapter_facts import AdapterFacts
from svc_kit.errors import ModelUnloaded
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import PrivateFile
from tests.support.pooled import settle

SETTINGS = BackendSettings(Path("m.gguf"), 2, 50, 64, 64, 1, 1)
READY = Ready(ModelReady("m", 2, 50, 64, WarmUp(1, "", {}), 1.0), "", FolderUsage(0, 0))
UNLOADED = ModelUnloaded(model="m")


class IdleProcess:
    """A process that does nothing; tests send its messages with `emit`, even after its end."""

    pid = 0
    emit: Callable[[EngineMessage], None]

    def start(
        self, *_: object, on_message: Callable[[EngineMessage], None], **__: Any
    ) -> ChildProcess[Any, Command]:
        self.emit = on_message
        return cast(ChildProcess[Any, Command], self)

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, command: object) -> None:
        """Record the command; it is not answered."""
        self.sent.append(command)

    async def close(self) -> None:
        """Do nothing."""


async def start_engine(process: IdleProcess) -> tuple[EngineClient, "asyncio.Task[None]"]:
    engine = EngineClient("m", process.start, QueueLimits(4, 1000, 1000), ReaderLimits(100, 60.0))
    start = asyncio.create_task(engine.start())
    await settle()
    return engine, start


async def test_closing_the_client_ends_a_pending_start() -> None:
    """The exit of a closed engine's process is not reported."""
    engine, start = await start_engine(IdleProcess())
    await engine.close(UNLOADED)
    await settle()

    assert start.done()
    with pytest.raises(StartupError, match="closed while it loaded"):
        await start


async def test_the_memory_of_an_engine_includes_gpus() -> None:
    """While it is up; the process reports changes."""
    process = IdleProcess()
    engine, start = await start_engine(process)
    process.pid = os.getpid()
    process.emit(replace(READY, model=replace(READY.model, device_bytes={"CUDA0": 1 << 40})))
    await start

    assert engine.memory.host > 0
    assert engine.memory.devices == {"CUDA0": 1 << 40}
    process.emit(DeviceMemoryReport({"CUDA0": 1 << 41}))
    assert engine.memory.devices == {"CUDA0": 1 << 41}
    await engine.close(UNLOADED)
    assert engine.memory == DeviceBytes()


@pytest.mark.parametrize("is_answered", [True, False])
async def test_prefixes_are_archived_for_a_limited_time(*, is_answered: bool) -> None:
    """Of an engine with a disk prefix cache; it is not waited for longer."""
    process = IdleProcess()
    engine, start = await start_engine(process)
    process.emit(READY)
    await start
    await engine.archive_prefixes()
    assert process.sent == []
    process.emit([DiskCacheLoad(1.0, TierLoad(0, 0, 9, 10**6, 0, 0, 0, 0))])
    archiving = asyncio.create_task(engine.archive_prefixes(3600.0 if is_answered else 0.01))
    await settle()
    if is_answered:
        process.emit(SnapshotDone(0, 2, None))
    await archiving

    assert process.sent == [ArchivePrefixes(0)]


async def test_a_closed_client_ignores_messages(tmp_path: Path) -> None:
    """Its successor uses the adapters: a late answer must not count for the successor's load."""
    process = IdleProcess()
    engine, start = await start_engine(process)
    process.emit(READY)
    await start
    await engine.close(UNLOADED)
    source = tmp_path / "source"
    source.write_text("weights")
    description = AdapterFacts(
        architecture="llama", base_model="", rank=8, size_bytes=100, title=""
    )
    adapter = Adapter("voice", "m", PrivateFile.copy_of(source, tmp_path), description, 1.0)
    loaded = engine.adapters.load(adapter)  # by the successor
    process.emit([AdapterLoadDone(adapter.digest)])

    assert not loaded.done()
    adapter.file.close()


async def test_a_restarted_process_gets_what_is_known_of_its_model_by_then() -> None:
    """The measurements of the first process, and the digest of its files."""
    configs: list[EngineConfig] = []
    process, digests = IdleProcess(), iter(["", "abc"])

    def start(
        _module: str,
        config: EngineConfig,
        on_message: Callable[[EngineMessage], None],
        on_exit: Callable[[int], None],
    ) -> ChildProcess[Any, Command]:
        configs.append(config)
        return process.start(on_message=on_message, on_exit=on_exit)

    config = EngineConfig("m", SETTINGS, chunk_cap=16, threads=1, cores=1)
    local, received = LocalEngine(config, lambda: next(digests), start), list[object]()
    local.spawn(on_message=received.append, on_exit=received.append)
    process.emit(READY)
    local.spawn(on_message=received.append, on_exit=received.append)

    assert received == [READY]
    assert configs == [config, replace(config, warm_up=READY.model.warm_up, digest="abc")]
