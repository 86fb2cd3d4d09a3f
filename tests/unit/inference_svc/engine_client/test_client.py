"""What a engine does when it is closed at an awkward moment; its process does nothing."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference_svc.engine.events import AdapterLoaded
from inference_svc.engine_client import client as worker_module
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.messages import (
    DevicesTaken,
    EngineConfig,
    ModelConfig,
    ModelReady,
    Ready,
)
from inference_svc.engine_client.output_stream import ReaderLimits
from inference_svc.engine_client.process import FromEngine
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.warmup import WarmUp
from inference_svc.models.device_memory import DeviceBytes
from inference_svc.snapshots.store import FolderUse
from model_files.adapter_file import AdapterDescription
from svc_kit.errors import ModelUnloaded
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import PrivateFile
from tests.support.pooled import settle

MODEL = ModelConfig("m", BackendSettings(Path("m.gguf"), 2, 50, 64, 64, 1, 1), 16, 1)
READY = Ready(ModelReady("m", 2, 50, 64, WarmUp(1, "", {}), 1.0), "", FolderUse(0, 0))
UNLOADED = ModelUnloaded(model="m")


class IdleProcess:
    """A process that says what the test says, also after its end."""

    pid = 0

    def __init__(
        self, _: EngineConfig, *, on_message: Callable[[FromEngine], None], **__: Any
    ) -> None:
        self.says = on_message

    def send(self, command: object) -> None:
        """Lost."""

    async def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[IdleProcess]:
    """Those that engines start."""
    started: list[IdleProcess] = []

    def start(*args: Any, **settings: Any) -> IdleProcess:
        started.append(IdleProcess(*args, **settings))
        return started[-1]

    monkeypatch.setattr(worker_module, "EngineProcess", start)
    return started


def a_worker() -> EngineClient:
    """A engine without a model."""
    boot = EngineConfig(MODEL, 1, "info", None, 0.0)
    return EngineClient(boot, QueueLimits(4, 1000), ReaderLimits(100, 60.0))


async def test_a_start_ends_with_a_close(processes: list[IdleProcess]) -> None:
    """Whoever waits for it would wait for ever: the death of a closed engine is no news."""
    engine = a_worker()
    start = asyncio.create_task(engine.start())
    await settle()
    await engine.close(UNLOADED)
    await settle()

    assert start.done()
    with pytest.raises(StartupError, match="ended while it loaded"):
        await start


async def test_what_an_engine_takes_of_gpus_is_its_memory_too(
    processes: list[IdleProcess],
) -> None:
    """For as long as it is up; it tells when that grows."""
    engine = a_worker()
    start = asyncio.create_task(engine.start())
    await settle()
    processes[0].pid = os.getpid()
    processes[0].says(replace(READY, model=replace(READY.model, device_bytes={"CUDA0": 1 << 40})))
    await start

    assert engine.memory.host > 0
    assert engine.memory.devices == {"CUDA0": 1 << 40}
    processes[0].says(DevicesTaken({"CUDA0": 1 << 41}))
    assert engine.memory.devices == {"CUDA0": 1 << 41}
    await engine.close(UNLOADED)
    assert engine.memory == DeviceBytes()


async def test_a_closed_worker_hears_nothing(processes: list[IdleProcess], tmp_path: Path) -> None:
    """The adapters are its successor's by then: a late answer is not for what that one loads."""
    engine = a_worker()
    start = asyncio.create_task(engine.start())
    await settle()
    processes[0].says(READY)
    await start
    await engine.close(UNLOADED)
    source = tmp_path / "source"
    source.write_text("weights")
    description = AdapterDescription(rank=8, size_bytes=100, title="")
    adapter = Adapter("voice", "m", PrivateFile.copy_of(source, tmp_path), description, 1.0)
    loaded = engine.adapters.load(adapter)  # by the successor
    processes[0].says([AdapterLoaded(*adapter.content)])

    assert not loaded.done()
    adapter.file.close()
