"""Loads and unloads models, plans the memory of those that load together, and signals changes."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.messages import LoadPhase, LoadProgress
from inference_svc.model_pool.catalog import Catalog, KnownModel, ServedModel
from inference_svc.model_pool.eviction import (
    Fits,
    MakeRoom,
    ModelState,
    Resident,
    Verdict,
    Wait,
    over_budget,
    plan_load,
)
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
    """Wakes waiters at every change of a model; the version number identifies the changes that a
    watcher has seen. `on_change` is called at each externally visible change.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._event = asyncio.Event()
        self._version = 0

    def of(self, known: KnownModel) -> None:
        """A model has changed."""
        self._version += 1
        known.version = self._version
        self.told()

    def told(self) -> None:
        """Something has changed that is no model's."""
        self.wake()
        self._on_change()

    def wake(self) -> None:
        """Wake all current waiters."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once a condition holds that changes bring about."""
        while not holds():
            await self._event.wait()


log = logging.getLogger(__name__)
Move = asyncio.Task[DomainError | None]
"""A load or an unload under way; its result is why a load did not come about."""


class Loader(Protocol):
    """What a model is made of: its front and its engine."""

    async def check(self, known: KnownModel) -> None:
        """Raise `StartupError` where its files are others than those that were described."""

    async def open(self, known: KnownModel) -> ServedModel:
        """Open its vocabulary and template. Raises `StartupError`."""

    def engine(
        self,
        known: KnownModel,
        sizes: ResolvedLimits,
        on_change: Callable[[], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> EngineClient:
        """An engine that is not started yet; `on_change` is called when its state changes."""

    def announce(self, known: KnownModel, sizes: ResolvedLimits) -> None:
        """Log that a model is ready, with its sizes."""


async def _nowhere() -> None:
    """Where what is available is always known."""


@dataclass(frozen=True, slots=True)
class Memory:
    """`budget_bytes` is what all models together may take, `available` what the machine and its
    GPUs can give now, as far as the last `look` told; a load waits `patience_s` for memory that
    models in use hold."""

    budget_bytes: int
    available: Callable[[], DeviceBytes]
    patience_s: float
    look: Callable[[], Awaitable[None]] = _nowhere


class ModelLifecycle:
    """Loads and unloads. A model has at most one move at a time."""

    def __init__(
        self,
        catalog: Catalog,
        loader: Loader,
        memory: Memory,
        changes: ModelChangeSignal,
        clock: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._loader = loader
        self._memory = memory
        self._changes = changes
        self._clock = clock
        self._one_load = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._moves: dict[str, Move] = {}

    def of(self, known: KnownModel) -> Move | None:
        """The move under way."""
        return self._moves.get(known.name)

    def load(self, known: KnownModel, sizes: ResolvedLimits | None = None) -> Move:
        """Begin to load a model; without sizes they are found when its turn comes."""
        known.resident.begin()
        known.progress = LoadProgress(LoadPhase.WAITING)
        return self._begin(known, self._load(known, sizes))

    def unload(self, known: KnownModel) -> Move:
        """Take no more uses, and free the memory when the last one ends."""
        known.resident.retire()
        return self._begin(known, self._unload(known))

    async def stop(self, known: KnownModel) -> None:
        """Cancel a load in progress; its waiters get MODEL_UNLOADED."""
        await asyncio.sleep(0)  # a task that has not begun yet could not clean up
        move = self._moves.get(known.name)
        if move is not None and known.resident.state is ModelState.LOADING:
            move.cancel()
            await asyncio.wait((move,))

    async def open(self, known: KnownModel) -> ServedModel:
        """The front of a model, opened if it is not. Raises `StartupError`."""
        async with self._opening:
            if known.front is None:
                known.front = await self._loader.open(known)
        return known.front

    def check_fits(self, known: KnownModel, requested: RequestedLimits) -> None:
        """Raise `ModelTooLarge` where a load with these limits could not fit, whatever else
        went."""
        self._measure()
        self._judge_for(known, memory_needs(known.file, requested).least)

    async def close(self) -> None:
        """Stop what is under way and end every engine."""
        moves = list(self._moves.values())
        for move in moves:
            move.cancel()
        await asyncio.gather(*moves, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._catalog.workers))

    def _begin(self, known: KnownModel, steps: Coroutine[Any, Any, DomainError | None]) -> Move:
        move = asyncio.create_task(steps, name=f"{known.resident.state.value} {known.name}")
        self._moves[known.name] = move
        self._changes.of(known)
        return move

    def _is_own(self, known: KnownModel) -> bool:
        """Whether the move that asks is still the model's: a load that is only keeping the budget
        is followed by an unload at once."""
        return self._moves.get(known.name) is asyncio.current_task()

    def _end(self, known: KnownModel) -> None:
        if self._is_own(known):
            del self._moves[known.name]
            known.progress = None
        self._changes.of(known)

    # --- loading ----------------------------------------------------------------------------------

    async def _load(self, known: KnownModel, sizes: ResolvedLimits | None) -> DomainError | None:
        try:
            await self._load_in_turn(known, sizes)
        except (MemoryInUse, ModelTooLarge) as error:
            known.resident.abandon()
            return error
        except asyncio.CancelledError:  # by an unload, or the end: who waits hears it
            if known.resident.state is ModelState.LOADING:
                known.resident.abandon()
            return ModelUnloaded(model=known.name)
        except Exception as error:  # whatever it is, it is this model's alone
            is_defect = not isinstance(error, StartupError)
            log.error("model %s cannot be loaded: %s", known.name, error, exc_info=is_defect)
            known.resident.fail(str(error) or type(error).__name__)
            return ModelLoadFailed(model=known.name, problem=known.resident.problem)
        finally:
            if self._is_own(known) and known.resident.state is not ModelState.READY:
                await self._end_engine(known)
            self._end(known)
        return None

    async def _load_in_turn(self, known: KnownModel, sizes: ResolvedLimits | None) -> None:
        async with self._one_load:
            await self._loader.check(known)
            await self.open(known)
            if sizes is None:
                await self._memory.look()
                sizes = await self._make_room(known)
            planned = planned_bytes(known.file, sizes)
            known.resident.plan(known.resident.spread.divide(planned, self._memory.available()))
            known.worker = worker = self._loader.engine(
                known,
                sizes,
                on_change=lambda: self._engine_changed(known),
                on_progress=lambda progress: self._report_progress(known, progress),
            )
            await worker.start()
            known.ready_at = datetime.now(UTC)
            known.resident.ready(self._clock())
            self._measure()
            self._loader.announce(known, sizes)
            await self._keep_budget(known)

    def _engine_changed(self, known: KnownModel) -> None:
        if known.worker is not None and known.worker.state is EngineState.SERVING:
            known.progress = None  # an engine that died has been loaded again, by itself
        self._changes.of(known)

    def _report_progress(self, known: KnownModel, progress: LoadProgress) -> None:
        known.progress = progress
        self._changes.of(known)

    async def _make_room(self, known: KnownModel) -> ResolvedLimits:
        """Sizes that fit, once there is room. Raises `ModelTooLarge` or `MemoryInUse`."""
        try:
            async with asyncio.timeout(self._memory.patience_s):
                while True:
                    verdict = self._judge(known)
                    if isinstance(verdict, Fits):
                        return plan_limits([known.file], verdict.free_bytes, [known.requested])[0]
                    if isinstance(verdict, MakeRoom):
                        await self._evict_idle(verdict.victim)
                    else:
                        await self._changes.until(lambda: not isinstance(self._judge(known), Wait))
        except TimeoutError:
            needs = memory_needs(known.file, known.requested)
            verdict = self._judge(known)
            free = verdict.free_bytes if isinstance(verdict, Wait) else 0
            raise MemoryInUse(
                model=known.name, needed_bytes=needs.least, available_bytes=free
            ) from None

    def _judge(self, known: KnownModel) -> Verdict:
        """What gives comfortable sizes at once, else what gives the least."""
        self._measure()
        needs = memory_needs(known.file, known.requested)
        try:
            verdict = self._judge_for(known, needs.comfortable)
        except ModelTooLarge:
            return self._judge_for(known, needs.least)
        return self._judge_for(known, needs.least) if isinstance(verdict, Wait) else verdict

    def _judge_for(self, known: KnownModel, needed_bytes: int) -> Verdict:
        return plan_load(
            known.resident,
            self._residents(),
            needed_bytes,
            budget_bytes=self._memory.budget_bytes,
            available=self._available(),
        )

    def _available(self) -> DeviceBytes:
        """What can be given now, without what engines that died take again when they are back."""
        back = (known.resident.held for known in self._catalog if known.is_coming_back)
        return self._memory.available().without(sum(back, DeviceBytes()))

    def _residents(self) -> list[Resident]:
        return [each.resident for each in self._catalog]

    def _measure(self) -> None:
        """Learn what the engines take now; one that is down will take what it took."""
        for known in self._catalog:
            measured = known.worker.memory if known.worker is not None else DeviceBytes()
            if measured.total and known.resident.state is not ModelState.LOADING:
                known.resident.held = measured

    async def _keep_budget(self, loaded: KnownModel) -> None:
        """A load that took more than planned costs those used least lately their place."""
        budget = self._memory.budget_bytes
        while (extra := over_budget(self._residents(), budget, loaded.resident)) is not None:
            log.info("evicting model %s: the models exceed the memory budget", extra.name)
            await self._evict_idle(extra)

    async def _evict_idle(self, resident: Resident) -> None:
        await asyncio.shield(self.unload(self._catalog.find_model(resident.name)))

    # --- unloading --------------------------------------------------------------------------------

    async def _unload(self, known: KnownModel) -> None:
        try:
            await self._changes.until(lambda: known.resident.uses == 0)
            await self._end_engine(known)
            known.resident.gone()
            log.info("model %s is unloaded", known.name)
        finally:
            self._end(known)

    async def _end_engine(self, known: KnownModel) -> None:
        worker, known.worker = known.worker, None
        if worker is not None:
            await worker.close(ModelUnloaded(model=known.name))


def plan_start(models: Sequence[KnownModel], memory: Memory) -> list[ResolvedLimits]:
    """Sizes for each of the models; a group of them leaves the least that later groups need.

    Raises `ModelTooLarge`.
    """
    free, budget_bytes = memory.available(), memory.budget_bytes
    waiting = list(_groups(models, free))
    sizes: dict[str, ResolvedLimits] = {}
    while waiting:
        group = waiting.pop(0)
        kept = [_least(each, free) for others in waiting for each in others]
        kept_bytes = sum(kept, DeviceBytes())
        left = free.without(kept_bytes)
        fitting = (each.resident.spread.fitting_bytes(left, free) for each in group)
        most = max(min(budget_bytes - kept_bytes.total, *fitting), 0)
        files, requests = [each.file for each in group], [each.requested for each in group]
        for known, limits in zip(group, plan_limits(files, most, requests), strict=True):
            sizes[known.name] = limits
            planned = planned_bytes(known.file, limits)
            free = free.without(known.resident.spread.divide(planned, free))
            budget_bytes -= planned
    return [sizes[known.name] for known in models]


def _groups(models: Sequence[KnownModel], free: DeviceBytes) -> Sequence[list[KnownModel]]:
    groups = defaultdict(list)
    for known in models:
        groups[known.resident.spread.places(free)].append(known)
    return list(groups.values())


def _least(known: KnownModel, free: DeviceBytes) -> DeviceBytes:
    needed = memory_needs(known.file, known.requested).least
    return known.resident.spread.divide(needed, free)
