"""A model pool with fake engines: tests decide when and how loads end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.messages import LoadPhase, LoadProgress
from inference_svc.model_pool.catalog import Catalog, ModelEntry, ModelProcessor
from inference_svc.model_pool.eviction import Resident
from inference_svc.model_pool.lifecycle import MemoryBudget
from inference_svc.model_pool.pool import ModelPool
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.memory_plan import RequestedLimits, ResolvedLimits, planned_bytes
from inference_svc.models.metadata import ModelFile
from inference_svc.models.placement import LoadPolicy
from svc_kit.errors import DomainError, EngineRestarting
from svc_kit.lifecycle import StartupError
from tests.support.sequences import ManualClock
from tests.unit.inference_svc.models.test_memory_plan import make_model_file

GIB = 1 << 30
BUDGET = 10 * GIB
MACHINE = DeviceBytes(100 * GIB)


class FakeEngine:
    """An engine that uses `memory`. Its load ends when the test says so, and it closes at once
    unless `may_close` is cleared."""

    def __init__(self, name: str, memory: DeviceBytes, on_change: Callable[[], None]) -> None:
        self.name = name
        self._memory = memory
        self.state = EngineState.STARTING
        self.ready: object = None
        self.closed_with: DomainError | None = None
        self.is_closed = self.is_archived = False
        self.snapshots: object = None
        self.may_close = asyncio.Event()
        self.may_close.set()
        self._on_change = on_change
        self._loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def memory(self) -> DeviceBytes:
        """Its memory; nothing while it is down."""
        return DeviceBytes() if self.state is EngineState.RESTARTING else self._memory

    @property
    def is_loading(self) -> bool:
        return not self._loaded.done()

    async def start(self) -> None:
        """Wait until the test ends the load."""
        await self._loaded

    def finish_load(self) -> None:
        self.state = EngineState.SERVING
        self._loaded.set_result(None)

    def fail_load(self, problem: str = "broken") -> None:
        self._loaded.set_exception(StartupError(problem))

    def crash(self) -> None:
        """End the process; it restarts until `recover`."""
        self.state = EngineState.RESTARTING
        self._on_change()

    def recover(self) -> None:
        self.state = EngineState.SERVING
        self._on_change()

    def check_open(self) -> None:
        """Raise the error it was closed with, or `EngineRestarting`."""
        if self.closed_with is not None:
            raise self.closed_with
        if self.state is not EngineState.SERVING:
            raise EngineRestarting()

    async def wait_idle(self) -> None:
        """Return at once: no request runs."""

    async def archive_prefixes(self) -> None:
        """Record it."""
        self.is_archived = not self.is_closed

    async def close(self, error: DomainError | None = None) -> None:
        self.is_closed, self.closed_with = True, self.closed_with or error
        await self.may_close.wait()


class FakeLoader:
    """Creates fake engines; `engines` are all that were created. Loads end by themselves if
    `loads_immediately`; engines use `excess` bytes more than planned."""

    def __init__(self, free: DeviceBytes) -> None:
        self.free = free
        self.engines: list[FakeEngine] = []
        self.loads_immediately = False
        self.excess = 0
        self._on_progress: dict[str, Callable[[LoadProgress], None]] = {}

    async def check_files(self, entry: ModelEntry) -> None:
        """Accept: there are no files."""

    async def open_processor(self, entry: ModelEntry) -> ModelProcessor:
        """Return a stand-in that only has a name."""
        return cast(ModelProcessor, entry.file)

    async def start_media(self, entry: ModelEntry) -> None:
        """Start nothing: the models have no projectors."""

    def create_engine(
        self,
        entry: ModelEntry,
        limits: ResolvedLimits,
        on_change: Callable[[], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> EngineClient:
        planned = entry.resident.layer_split.divide(planned_bytes(entry.file, limits), self.free)
        engine = FakeEngine(entry.name, planned + DeviceBytes(self.excess), on_change)
        self.engines.append(engine)
        self._on_progress[entry.name] = on_progress
        if self.loads_immediately:
            engine.finish_load()
        return cast(EngineClient, engine)

    def create_upstream(self, entry: ModelEntry, on_change: Callable[[], None]) -> EngineClient:
        engine = FakeEngine(entry.name, DeviceBytes(), on_change)
        self.engines.append(engine)
        return cast(EngineClient, engine)

    def on_ready(self, entry: ModelEntry, limits: ResolvedLimits | None) -> None:
        """Do nothing."""

    def report_progress(self, name: str, fraction: float) -> None:
        self._on_progress[name](LoadProgress(LoadPhase.WEIGHTS, fraction))

    def loading(self) -> list[FakeEngine]:
        return [each for each in self.engines if each.is_loading and not each.is_closed]

    def alive(self, name: str) -> list[FakeEngine]:
        return [each for each in self.engines if each.name == name and not each.is_closed]


def make_entry(name: str, gib: float = 4, **changes: Any) -> ModelEntry:
    sizes = {"size_bytes": int(gib * GIB), "kv_bytes_per_token": 1}
    file: ModelFile = make_model_file(name=name, **(sizes | changes.pop("file", {})))
    layer_split = changes.pop("layer_split", LayerSplit())
    resident = Resident(name, is_pinned=changes.pop("pinned", False), layer_split=layer_split)
    policy = changes.pop("policy", LoadPolicy.ON_DEMAND)
    return ModelEntry(file, RequestedLimits(), resident, policy=policy, **changes)


class PoolHarness:
    """A pool over fakes; a model given by name is a default `make_entry`.

    `num_refreshes` counts the readings of free memory; the next one is `free_after_refresh`, if
    set.
    """

    def __init__(
        self,
        *models: ModelEntry | str,
        wait_s: float = 60,
        memory_wait_s: float = 60,
        budget: int = BUDGET,
        free: DeviceBytes = MACHINE,
    ) -> None:
        self.loader = FakeLoader(free)
        self.num_refreshes = 0
        self.free_after_refresh: DeviceBytes | None = None
        self.clock = ManualClock()
        self.catalog = Catalog(make_entry(m) if isinstance(m, str) else m for m in models)
        self.pool = ModelPool(
            self.catalog,
            self.loader,
            MemoryBudget(budget, lambda: self.free, memory_wait_s, self._refresh),
            wait_s=wait_s,
            clock=self.clock,
        )

    async def _refresh(self) -> None:
        self.num_refreshes += 1
        self.loader.free = self.free_after_refresh or self.loader.free

    @property
    def free(self) -> DeviceBytes:
        """What engines leave of the GPUs; the machine always has enough memory."""
        used = (
            entry.resident.memory
            for entry in self.catalog
            if entry.engine is not None and entry.engine.state is not EngineState.RESTARTING
        )
        return self.loader.free.without(replace(sum(used, DeviceBytes()), host=0))

    def __getitem__(self, name: str) -> ModelEntry:
        return self.catalog.find_model(name)

    def states(self) -> dict[str, str]:
        return {entry.name: entry.state.value for entry in self.catalog}

    async def start(self, *, loads_immediately: bool = True) -> "PoolHarness":
        self.loader.loads_immediately = loads_immediately
        await self.pool.start()
        self.pool.open()
        return self


async def settle() -> None:
    """Run all tasks until each of them waits."""
    for _ in range(30):
        await asyncio.sleep(0)
