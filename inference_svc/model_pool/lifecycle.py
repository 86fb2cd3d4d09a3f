"""Loads and unloads models, plans the memory of models loaded together, and signals changes."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.messages import LoadPhase, LoadProgress
from inference_svc.media.processor import MediaProcessor
from inference_svc.model_pool import eviction
from inference_svc.model_pool.catalog import Catalog, ModelEntry, PendingModel, Processor
from inference_svc.models.device_memory import DeviceBytes
from inference_svc.models.memory_plan import (
    RequestedLimits,
    ResolvedLimits,
    memory_needs,
    plan_limits,
    planned_bytes,
)
from svc_kit.errors import DomainError, MemoryInUse, ModelLoadFailed, ModelTooLarge, ModelUnloaded
from svc_kit.lifecycle import StartupError


class ModelChangeSignal:
    """Wakes waiters when a model or the pool changes, and numbers the changes of models.

    `on_change` is called at each change that clients can see.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._event = asyncio.Event()
        self._version = 0

    def model_changed(self, entry: ModelEntry | PendingModel) -> None:
        """Give the model a new version and notify."""
        self._version += 1
        entry.version = self._version
        self.notify()

    def notify(self) -> None:
        """Wake all waiters and call `on_change`."""
        self.wake()
        self._on_change()

    def wake(self) -> None:
        """Wake all current waiters."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds; it is checked again after each change."""
        while not condition():
            await self._event.wait()


log = logging.getLogger(__name__)
Transition = asyncio.Task[DomainError | None]
"""A running load or unload. The result is the error of a failed load."""


class Loader(Protocol):
    """What a model's lifecycle needs of `loader.py`; tests have one without files."""

    async def check_files(self, entry: ModelEntry) -> None:
        """Raise `StartupError` if the model files changed since they were described."""

    async def open_processor(self, entry: ModelEntry) -> Processor:
        """Open vocabulary and chat template. Raises `StartupError`."""

    async def start_media(self, entry: ModelEntry) -> MediaProcessor | None:
        """Start the encoder of the model's projector, if it has one. Raises `StartupError`."""

    def create_engine(
        self,
        entry: ModelEntry,
        limits: ResolvedLimits,
        on_change: Callable[[], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> EngineClient:
        """Create an engine without starting it; `on_change` is called when its state changes."""

    def create_upstream(self, entry: ModelEntry, on_change: Callable[[], None]) -> EngineClient:
        """Create the client of an upstream engine without connecting it. Raises `StartupError`."""

    def on_ready(self, entry: ModelEntry, limits: ResolvedLimits | None) -> None:
        """Called when the model is loaded, with its limits; None for that of an upstream."""


async def _no_refresh() -> None:
    """For memory whose readings never expire."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory that models may use.

    `budget_bytes` limits all models together. `available` returns the free memory of the machine
    and its GPUs as of the last `refresh`. A load waits `memory_wait_s` for memory that models in
    use hold.
    """

    budget_bytes: int
    available: Callable[[], DeviceBytes]
    memory_wait_s: float
    refresh: Callable[[], Awaitable[None]] = _no_refresh


class ModelLifecycle:
    """Loads and unloads models. A model has at most one transition at a time."""

    def __init__(
        self,
        catalog: Catalog,
        loader: Loader,
        memory: MemoryBudget,
        changes: ModelChangeSignal,
        clock: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._loader = loader
        self._memory = memory
        self._changes = changes
        self._clock = clock
        self._load_lock = asyncio.Lock()
        self._open_lock = asyncio.Lock()
        self._transitions: dict[str, Transition] = {}

    def transition(self, entry: ModelEntry) -> Transition | None:
        return self._transitions.get(entry.name)

    def load(self, entry: ModelEntry, limits: ResolvedLimits | None = None) -> Transition:
        """Start to load a model. Unset `limits` are planned when its turn comes."""
        entry.resident.start_loading()
        entry.progress = LoadProgress(LoadPhase.WAITING)
        return self._start(entry, self._load(entry, limits))

    def unload(self, entry: ModelEntry) -> Transition:
        """Allow no new uses, and free the memory when the last use ends."""
        entry.resident.start_unloading()
        return self._start(entry, self._unload(entry))

    async def cancel_load(self, entry: ModelEntry) -> None:
        """Cancel a load in progress; its waiters get MODEL_UNLOADED."""
        await asyncio.sleep(0)  # a task cancelled before it starts would not clean up
        transition = self._transitions.get(entry.name)
        if transition is not None and entry.resident.state is eviction.ModelState.LOADING:
            transition.cancel()
            await asyncio.wait((transition,))

    async def open_processor(self, entry: ModelEntry) -> Processor:
        """Return the processor of a model, opening it on first use. Raises `StartupError`."""
        async with self._open_lock:
            if entry.processor is None:
                entry.processor = await self._loader.open_processor(entry)
        return entry.processor

    def check_fits(self, entry: ModelEntry, requested: RequestedLimits) -> None:
        """Raise `ModelTooLarge` if a load with these limits cannot fit even after evictions."""
        if entry.upstream is not None:
            return
        self._measure()
        self._plan_load(entry, memory_needs(entry.file, requested).least)

    async def close(self) -> None:
        """Cancel all transitions and end every engine."""
        moves = list(self._transitions.values())
        for transition in moves:
            transition.cancel()
        await asyncio.gather(*moves, return_exceptions=True)
        await asyncio.gather(*(engine.close() for engine in self._catalog.engines))
        media = [entry.media for entry in self._catalog if entry.media is not None]
        await asyncio.gather(*(each.close() for each in media))

    def _start(
        self, entry: ModelEntry, steps: Coroutine[Any, Any, DomainError | None]
    ) -> Transition:
        transition = asyncio.create_task(steps, name=f"{entry.resident.state.value} {entry.name}")
        self._transitions[entry.name] = transition
        self._changes.model_changed(entry)
        return transition

    def _is_current(self, entry: ModelEntry) -> bool:
        """Whether the calling task is still the transition of the model. An unload may already have
        replaced a load that only enforces the budget."""
        return self._transitions.get(entry.name) is asyncio.current_task()

    def _end(self, entry: ModelEntry) -> None:
        if self._is_current(entry):
            del self._transitions[entry.name]
            entry.progress = None
        self._changes.model_changed(entry)

    # --- loading ----------------------------------------------------------------------------------

    async def _load(self, entry: ModelEntry, limits: ResolvedLimits | None) -> DomainError | None:
        try:
            if entry.upstream is None:
                await self._load_in_turn(entry, limits)
            else:
                await self._connect(entry)
        except (MemoryInUse, ModelTooLarge) as error:
            entry.resident.cancel_loading()
            return error
        except asyncio.CancelledError:  # by an unload or a shutdown; waiters get the error
            if entry.resident.state is eviction.ModelState.LOADING:
                entry.resident.cancel_loading()
            return ModelUnloaded(model=entry.name)
        except Exception as error:  # any error fails this model only
            is_bug = not isinstance(error, StartupError)
            log.error("model %s cannot be loaded: %s", entry.name, error, exc_info=is_bug)
            entry.resident.fail(str(error) or type(error).__name__)
            return ModelLoadFailed(model=entry.name, problem=entry.resident.problem)
        finally:
            if self._is_current(entry) and entry.resident.state is not eviction.ModelState.READY:
                await self._end_engine(entry)
            self._end(entry)
        return None

    async def _load_in_turn(self, entry: ModelEntry, limits: ResolvedLimits | None) -> None:
        async with self._load_lock:
            await self._loader.check_files(entry)
            await self.open_processor(entry)
            if limits is None:
                await self._memory.refresh()
                limits = await self._wait_for_memory(entry)
            planned = planned_bytes(entry.file, limits)
            resident = entry.resident
            resident.reserve(resident.layer_split.divide(planned, self._memory.available()))
            entry.media = await self._loader.start_media(entry)
            entry.engine = engine = self._loader.create_engine(
                entry,
                limits,
                on_change=lambda: self._on_engine_change(entry),
                on_progress=lambda progress: self._on_progress(entry, progress),
            )
            if entry.media is not None:
                entry.media.encoder.engine = engine
                engine.on_process_exit = entry.media.encoder.resume
            await engine.start()
            entry.ready_at = datetime.now(UTC)
            resident.finish_loading(self._clock())
            self._measure()
            self._loader.on_ready(entry, limits)
            await self._enforce_budget(resident)

    async def _connect(self, entry: ModelEntry) -> None:
        """Connect to an upstream engine. It may be away for long, so other loads do not wait."""
        if not entry.tokenizer_from_engine:
            await self._loader.check_files(entry)
            await self.open_processor(entry)
        entry.progress = None
        entry.engine = engine = self._loader.create_upstream(
            entry, on_change=lambda: self._on_engine_change(entry)
        )
        self._changes.model_changed(entry)
        await engine.start()
        entry.ready_at = datetime.now(UTC)
        entry.resident.finish_loading(self._clock())
        self._loader.on_ready(entry, None)

    def _on_engine_change(self, entry: ModelEntry) -> None:
        if entry.engine is not None and entry.engine.state is EngineState.SERVING:
            entry.progress = None  # the engine finished a restart
        self._changes.model_changed(entry)

    def _on_progress(self, entry: ModelEntry, progress: LoadProgress) -> None:
        entry.progress = progress
        self._changes.model_changed(entry)

    async def _wait_for_memory(self, entry: ModelEntry) -> ResolvedLimits:
        """Evict or wait until the model fits. Raises `ModelTooLarge` or `MemoryInUse`."""
        try:
            async with asyncio.timeout(self._memory.memory_wait_s):
                while True:
                    match self._decide(entry):
                        case eviction.Fits(free_bytes):
                            return plan_limits([entry.file], free_bytes, [entry.requested])[0]
                        case eviction.Evict(victim):
                            await self._evict(victim)
                        case eviction.Wait():
                            await self._changes.wait_for(
                                lambda: not isinstance(self._decide(entry), eviction.Wait)
                            )
        except TimeoutError:
            needs = memory_needs(entry.file, entry.requested)
            decision = self._decide(entry)
            free = decision.free_bytes if isinstance(decision, eviction.Wait) else 0
            raise MemoryInUse(
                model=entry.name, needed_bytes=needs.least, available_bytes=free
            ) from None

    def _decide(self, entry: ModelEntry) -> eviction.LoadDecision:
        """Plan for comfortable limits if they are possible now, else for minimal ones."""
        self._measure()
        needs = memory_needs(entry.file, entry.requested)
        try:
            decision = self._plan_load(entry, needs.comfortable)
        except ModelTooLarge:
            return self._plan_load(entry, needs.least)
        return (
            self._plan_load(entry, needs.least) if isinstance(decision, eviction.Wait) else decision
        )

    def _plan_load(self, entry: ModelEntry, needed_bytes: int) -> eviction.LoadDecision:
        # Restarting engines will take their memory again.
        reserved = (each.resident.memory for each in self._catalog if each.is_restarting)
        return eviction.plan_load(
            entry.resident,
            self._residents(),
            needed_bytes,
            budget_bytes=self._memory.budget_bytes,
            available=self._memory.available().without(sum(reserved, DeviceBytes())),
        )

    def _residents(self) -> list[eviction.Resident]:
        return [each.resident for each in self._catalog]

    def _measure(self) -> None:
        """Update the memory of loaded models; one whose engine is down keeps its last value."""
        for entry in self._catalog:
            measured = entry.memory
            if measured.total and entry.resident.state is not eviction.ModelState.LOADING:
                entry.resident.memory = measured

    async def _enforce_budget(self, loaded: eviction.Resident) -> None:
        """Evict idle models after a load that took more memory than planned."""
        budget = self._memory.budget_bytes
        while (victim := eviction.find_over_budget(self._residents(), budget, loaded)) is not None:
            log.info("evicting model %s: the models exceed the memory budget", victim.name)
            await self._evict(victim)

    async def _evict(self, resident: eviction.Resident) -> None:
        await asyncio.shield(self.unload(self._catalog.find_model(resident.name)))

    # --- unloading --------------------------------------------------------------------------------

    async def _unload(self, entry: ModelEntry) -> None:
        try:
            await self._changes.wait_for(lambda: entry.resident.num_uses == 0)
            if entry.engine is not None:
                await entry.engine.archive_prefixes()
            await self._end_engine(entry)
            entry.resident.finish_unloading()
            log.info("model %s is unloaded", entry.name)
        finally:
            self._end(entry)

    async def _end_engine(self, entry: ModelEntry) -> None:
        engine, media = entry.engine, entry.media
        entry.engine = entry.media = entry.connection = None
        if engine is not None:
            await engine.close(ModelUnloaded(model=entry.name))
        if media is not None:  # after the engine, which reads its files
            await media.close(ModelUnloaded(model=entry.name))


def plan_start(models: Sequence[ModelEntry], memory: MemoryBudget) -> list[ResolvedLimits]:
    """Plan the limits of models that are loaded together, in their order.

    Models on the same devices form a group and share its memory; each group leaves the minimum
    that later groups need. Raises `ModelTooLarge`.
    """
    free, budget_bytes = memory.available(), memory.budget_bytes
    groups = defaultdict(list)
    for entry in models:
        groups[entry.resident.layer_split.places(free)].append(entry)
    remaining = list(groups.values())
    result: dict[str, ResolvedLimits] = {}
    while remaining:
        group = remaining.pop(0)
        minima = (_min_memory(each, free) for later in remaining for each in later)
        reserved = sum(minima, DeviceBytes())
        usable = free.without(reserved)
        fitting = (each.resident.layer_split.fitting_bytes(usable, free) for each in group)
        group_bytes = max(min(budget_bytes - reserved.total, *fitting), 0)
        files, requests = [each.file for each in group], [each.requested for each in group]
        for entry, limits in zip(group, plan_limits(files, group_bytes, requests), strict=True):
            result[entry.name] = limits
            planned = planned_bytes(entry.file, limits)
            free = free.without(entry.resident.layer_split.divide(planned, free))
            budget_bytes -= planned
    return [result[entry.name] for entry in models]


def _min_memory(entry: ModelEntry, free: DeviceBytes) -> DeviceBytes:
    needed = memory_needs(entry.file, entry.requested).least
    return entry.resident.layer_split.divide(needed, free)
