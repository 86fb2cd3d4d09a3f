"""A model pool whose engines are fakes: tests decide when a load ends, and how."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.messages import LoadPhase, LoadProgress
from inference_svc.model_pool.catalog import Catalog, KnownModel, ServedModel
from inference_svc.model_pool.eviction import Resident
from inference_svc.model_pool.lifecycle import Memory
from inference_svc.model_pool.pool import ModelPool
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.memory_plan import RequestedLimits, ResolvedLimits, planned_bytes
from inference_svc.models.metadata import ModelFile
from inference_svc.models.placement import LoadPolicy
from svc_kit.errors import DomainError, EngineRestarting
from svc_kit.lifecycle import StartupError
from tests.support.sequences import ManualClock
from tests.unit.inference_svc.models.test_memory_plan import a_model

GIB = 1 << 30
BUDGET = 10 * GIB
MACHINE = DeviceBytes(100 * GIB)


class FakeEngine:
    """An engine that loads when it is told to, takes what was planned for it unless `excess` says
    otherwise, and ends at once unless `may_end` is cleared."""

    def __init__(self, name: str, planned: DeviceBytes, on_change: Callable[[], None]) -> None:
        self.name = name
        self._takes = planned
        self.state = EngineState.STARTING
        self.ready: object = None
        self.closed_with: DomainError | None = None
        self.is_closed = False
        self.snapshots: object = None
        self.digest = ""
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._on_change = on_change
        self._loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def memory(self) -> DeviceBytes:
        """What it takes; nothing while it is down."""
        return DeviceBytes() if self.state is EngineState.RESTARTING else self._takes

    def learn_digest(self, digest: str) -> None:
        """Note it."""
        self.digest = digest

    @property
    def is_loading(self) -> bool:
        """Whether its load can be ended."""
        return not self._loaded.done()

    async def start(self) -> None:
        """Wait for the test."""
        await self._loaded

    def loads(self) -> None:
        """The load is done."""
        self.state = EngineState.SERVING
        self._loaded.set_result(None)

    def breaks(self, problem: str = "broken") -> None:
        """The load fails."""
        self._loaded.set_exception(StartupError(problem))

    def dies(self) -> None:
        """The process ends, and comes again some time."""
        self.state = EngineState.RESTARTING
        self._on_change()

    def recovers(self) -> None:
        """It is there again."""
        self.state = EngineState.SERVING
        self._on_change()

    def check_open(self) -> None:
        """Raise what it was closed with, or that it is not there."""
        if self.closed_with is not None:
            raise self.closed_with
        if self.state is not EngineState.SERVING:
            raise EngineRestarting()

    async def wait_idle(self) -> None:
        """Nothing runs here."""

    async def close(self, error: DomainError | None = None) -> None:
        """End it."""
        self.is_closed, self.closed_with = True, self.closed_with or error
        await self.may_end.wait()


class FakeLoader:
    """Makes fake engines; `engines` are all there ever were. Those of `at_once` load by
    themselves."""

    def __init__(self, free: DeviceBytes) -> None:
        self.free = free
        self.engines: list[FakeEngine] = []
        self.at_once = False
        self.excess = 0
        self._tell: dict[str, Callable[[LoadProgress], None]] = {}

    async def check(self, known: KnownModel) -> None:
        """There are no files."""

    async def open(self, known: KnownModel) -> ServedModel:
        """A front without anything in it."""
        return cast(ServedModel, known.file)

    def engine(
        self,
        known: KnownModel,
        sizes: ResolvedLimits,
        on_change: Callable[[], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> EngineClient:
        """A fake one."""
        planned = known.resident.spread.divide(planned_bytes(known.file, sizes), self.free)
        excess = DeviceBytes(self.excess)
        engine = FakeEngine(known.name, planned + excess, on_change)
        self.engines.append(engine)
        self._tell[known.name] = on_progress
        if self.at_once:
            engine.loads()
        return cast(EngineClient, engine)

    def announce(self, known: KnownModel, sizes: ResolvedLimits) -> None:
        """Nobody listens."""

    def progress(self, name: str, fraction: float) -> None:
        """Say how far a load is."""
        self._tell[name](LoadProgress(LoadPhase.WEIGHTS, fraction))

    def loading(self) -> list[FakeEngine]:
        """Engines whose load has begun and not ended."""
        return [each for each in self.engines if each.is_loading and not each.is_closed]

    def alive(self, name: str) -> list[FakeEngine]:
        """The model's engines that were not closed."""
        return [each for each in self.engines if each.name == name and not each.is_closed]


def a_known(name: str, gib: float = 4, **changes: Any) -> KnownModel:
    """A model of a size, loaded on demand."""
    sizes = {"size_bytes": int(gib * GIB), "kv_bytes_per_token": 1}
    file: ModelFile = a_model(name=name, **(sizes | changes.pop("file", {})))
    spread = changes.pop("spread", LayerSplit())
    resident = Resident(name, is_pinned=changes.pop("pinned", False), spread=spread)
    policy = changes.pop("policy", LoadPolicy.ON_DEMAND)
    return KnownModel(file, RequestedLimits(), resident, policy=policy, **changes)


class Pooled:
    """A pool over fakes. `clock` is the pool's; `num_looks` is how often it looked what is free,
    which is `becomes_free` from the next time on, where that is set."""

    def __init__(
        self,
        *models: KnownModel,
        wait_s: float = 60,
        patience_s: float = 60,
        budget: int = BUDGET,
        free: DeviceBytes = MACHINE,
    ) -> None:
        self.loader = FakeLoader(free)
        self.num_looks = 0
        self.becomes_free: DeviceBytes | None = None
        self.clock = ManualClock()
        self.catalog = Catalog(models)
        self.pool = ModelPool(
            self.catalog,
            self.loader,
            Memory(budget, lambda: self.free, patience_s, self._look),
            wait_s=wait_s,
            clock=self.clock,
        )

    async def _look(self) -> None:
        self.num_looks += 1
        self.loader.free = self.becomes_free or self.loader.free

    @property
    def free(self) -> DeviceBytes:
        """What engines leave of GPUs; of the machine's memory there is always enough."""
        held = (
            known.resident.held
            for known in self.catalog
            if known.worker is not None and known.worker.state is not EngineState.RESTARTING
        )
        return self.loader.free.without(replace(sum(held, DeviceBytes()), host=0))

    def __getitem__(self, name: str) -> KnownModel:
        return self.catalog.find_model(name)

    def states(self) -> dict[str, str]:
        """The state of every model."""
        return {known.name: known.state.value for known in self.catalog}

    async def started(self, *, at_once: bool = True) -> "Pooled":
        """Open for calls; loads end by themselves unless told otherwise."""
        self.loader.at_once = at_once
        await self.pool.start()
        self.pool.open()
        return self


async def settle() -> None:
    """Let every task run until all wait."""
    for _ in range(30):
        await asyncio.sleep(0)
