"""The pool of loaded models: use by calls, load and unload by operators, free memory."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from inference_svc.config import PoolSettings
from inference_svc.engine_client.client import DRAIN_RETRY_S, EngineState
from inference_svc.llama import devices
from inference_svc.machine import available_memory_bytes
from inference_svc.model_pool.catalog import (
    Catalog,
    LoadedModel,
    ModelEntry,
    PendingModel,
    Processor,
)
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_pool.lifecycle import (
    Loader,
    MemoryBudget,
    ModelChangeSignal,
    ModelLifecycle,
    Transition,
    plan_start,
)
from inference_svc.model_pool.settings_check import MEMORY_REMEDY
from inference_svc.models.device_memory import DeviceBytes
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import ModelFile
from inference_svc.models.placement import LoadPolicy
from svc_kit import errors
from svc_kit.lifecycle import StartupError


class FreeMemory:
    """The free memory of the machine and of each GPU. Use on the event loop.

    `engine_memory` returns the memory that all engines use now; `read_gpus` returns the free bytes
    of each GPU by name, None if they cannot be read.
    """

    def __init__(
        self,
        engine_memory: Callable[[], DeviceBytes],
        read_gpus: Callable[[], dict[str, int] | None] = devices.query_free_bytes,
    ) -> None:
        self._engine_memory = engine_memory
        self._read_gpus = read_gpus
        self._last_reading: DeviceBytes | None = None
        self._used_at_reading = DeviceBytes()

    async def refresh(self) -> None:
        """Read the free memory of the GPUs. If that fails, the last reading stays. A GPU of the
        first reading that is missing in a later one counts as full.
        """
        if self._last_reading is not None and not self._last_reading.devices:
            return  # no GPU appears while the process runs
        used_before = self._engine_memory()
        reading = await asyncio.to_thread(self._read_gpus)
        if reading is None:
            return
        names = reading if self._last_reading is None else self._last_reading.devices
        self._last_reading = DeviceBytes(devices={name: reading.get(name, 0) for name in names})
        # Engines may allocate or free memory while the reading is in progress: use the smaller of
        # both numbers, which never overestimates the free memory.
        self._used_at_reading = used_before.without(used_before.without(self._engine_memory()))

    def available(self) -> DeviceBytes:
        """The memory that can be allocated now: the last reading, corrected by what engines have
        allocated and freed since."""
        used, reading = self._engine_memory(), self._last_reading or DeviceBytes()
        freed = self._used_at_reading.without(used)
        free = (reading + freed).without(used.without(self._used_at_reading))
        devices = {name: free.devices[name] for name in reading.devices}
        return DeviceBytes(available_memory_bytes(), devices)


async def read_memory(settings: PoolSettings, catalog: Catalog) -> MemoryBudget:
    """The configured budget, or the memory that is free now, before models are loaded."""
    free = FreeMemory(lambda: sum((entry.memory for entry in catalog), DeviceBytes()))
    await free.refresh()
    budget = settings.memory_mib
    return MemoryBudget(
        budget_bytes=free.available().total if budget is None else budget << 20,
        available=free.available,
        memory_wait_s=settings.memory_wait_s,
        refresh=free.refresh,
    )


log = logging.getLogger(__name__)
_START_RETRY_S = 2.0
_LOAD_RETRY_S = 5.0
_IDLE_CHECK_S = 0.5
_CONNECT_WAIT_S = 5.0
"""So long the start and calls wait for upstreams, which mostly connect at once: one that is away
may stay so for hours."""


class ModelPool:
    """Loads models for calls and operators. All methods run on the event loop.

    `wait_s` is how long a call waits for its model to load; `on_change` is called when a model or
    the state of the pool has changed.
    """

    def __init__(
        self,
        catalog: Catalog,
        loader: Loader,
        memory: MemoryBudget,
        *,
        wait_s: float,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.catalog = catalog
        self.memory = memory
        self._wait_s = wait_s
        self._connect_wait_s = min(wait_s, _CONNECT_WAIT_S)
        self._clock = clock
        self.changes = ModelChangeSignal(on_change)
        self._lifecycle = ModelLifecycle(catalog, loader, memory, self.changes, clock)
        self._is_open = False
        self.is_draining = False
        self._num_calls = 0

    # --- startup and shutdown ---------------------------------------------------------------------

    async def start(self) -> None:
        """Load the models with load policy START. A model that fails does not stop the others, and
        an engine of others that is away does not delay the start.

        Raises `StartupError` if they do not fit into memory, or if no model is left.
        """
        for entry in self.catalog:
            if entry.file.problem:
                log.error("model %s cannot be used: %s", entry.name, entry.file.problem)
        started = [
            entry
            for entry in self.catalog
            if entry.policy is LoadPolicy.START and not entry.file.problem
        ]
        upstreams = [self._lifecycle.load(entry) for entry in started if entry.upstream]
        models = [entry for entry in started if not entry.upstream]
        try:
            plan = plan_start(models, self.memory)
        except errors.ModelTooLarge as error:
            raise StartupError(f"{error.message} {MEMORY_REMEDY}") from error
        for entry, limits in zip(models, plan, strict=True):
            # If the start is cancelled, `close` ends the load; its result would hide that.
            failure = await asyncio.shield(self._lifecycle.load(entry, limits))
            if failure is not None and not isinstance(failure, errors.ModelLoadFailed):
                raise StartupError(failure.message)
        if upstreams:
            await asyncio.wait(upstreams, timeout=self._connect_wait_s)
        # An engine of others that is refused now may be another one later.
        if all(
            entry.resident.state is ModelState.FAILED and (entry.file.problem or not entry.upstream)
            for entry in self.catalog
        ):
            raise StartupError(next(iter(self.catalog)).resident.problem)

    def open(self) -> None:
        """Accept calls."""
        self._is_open = True
        self.changes.notify()

    async def close(self) -> None:
        """End every engine; running calls fail with DRAINING."""
        await self._lifecycle.close()

    def drain(self) -> None:
        """Reject new calls; waiting and running ones continue."""
        self.is_draining = True
        self.changes.notify()

    def undrain(self) -> None:
        """Accept new calls again."""
        self.is_draining = False
        self.changes.notify()

    async def wait_idle(self) -> None:
        """Return once no call waits or runs and every slot is free."""
        await self.changes.wait_for(lambda: self._num_calls == 0)
        await asyncio.gather(*(engine.wait_idle() for engine in self.catalog.engines))

    async def archive_prefixes(self, timeout_s: float) -> None:
        """Let every engine write its prefixes to disk, for so long at most."""
        engines = self.catalog.engines
        await asyncio.gather(*(each.archive_prefixes(timeout_s) for each in engines))

    @property
    def state(self) -> EngineState:
        """The state of the service: RESTARTING if engines restart and none serves. An upstream that
        is away is no state of the service, which still answers for its other models."""
        if not self._is_open:
            return EngineState.STARTING
        local = (entry.engine for entry in self.catalog if entry.upstream is None)
        states = {engine.state for engine in local if engine is not None}
        if EngineState.RESTARTING in states and EngineState.SERVING not in states:
            return EngineState.RESTARTING
        return EngineState.DRAINING if self.is_draining else EngineState.SERVING

    # --- calls ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def use(
        self,
        entry: ModelEntry,
        check: Callable[[ModelFile], None] = lambda _: None,
    ) -> AsyncIterator[LoadedModel]:
        """Keep a model loaded until the context ends, loading it first if necessary.

        Args:
            entry: the model.
            check: raises if the model does not support the operation of the call.

        Raises:
            Draining: the server shuts down.
            EngineRestarting: the engine of the model crashed and restarts.
            ModelLoading: the load takes longer than a call waits.
            ModelLoadFailed, ModelNotLoaded: only an operator can load the model.
            ModelTooLarge, MemoryInUse: there is not enough memory, in total or now.
        """
        self._check_open(entry)
        check(entry.file)
        with self._count_call():
            if entry.resident.state is not ModelState.READY:
                await self._wait_until_ready(entry)
                check(entry.file)  # of which an upstream told more
            with self._lease(entry) as loaded:
                loaded.engine.check_open()
                yield loaded

    async def processor(self, entry: ModelEntry) -> Processor:
        """Return the processor of a model, which needs no engine unless that reports the tokenizer.

        Raises `ModelLoading` or `ModelLoadFailed`; `ModelNotLoaded` if only an operator can load
        the model.
        """
        if not self._is_open:
            raise errors.ModelLoading(model=entry.name, retry_after=_START_RETRY_S)
        if entry.processor is None and entry.tokenizer_from_engine:
            await self._wait_until_ready(entry)
        try:
            return entry.processor or await self._lifecycle.open_processor(entry)
        except StartupError as error:
            raise errors.ModelLoadFailed(model=entry.name, problem=str(error)) from error

    def _check_open(self, entry: ModelEntry) -> None:
        if self.is_draining:
            raise errors.Draining(retry_after=DRAIN_RETRY_S)
        if not self._is_open:
            raise errors.ModelLoading(model=entry.name, retry_after=_START_RETRY_S)

    @contextmanager
    def _count_call(self) -> Iterator[None]:
        self._num_calls += 1
        try:
            yield
        finally:
            self._num_calls -= 1
            if not self._num_calls:
                self.changes.wake()

    @contextmanager
    def _lease(self, entry: ModelEntry) -> Iterator[LoadedModel]:
        if entry.processor is None or entry.engine is None:
            raise errors.ModelLoading(model=entry.name, retry_after=_LOAD_RETRY_S)
        entry.resident.acquire(self._clock())
        try:
            yield LoadedModel(entry.processor, entry.engine, entry.digest, entry.media)
        finally:
            entry.resident.release(self._clock())
            if not entry.resident.num_uses:
                self.changes.wake()

    async def _wait_until_ready(self, entry: ModelEntry) -> None:
        entry.resident.num_waiting += 1
        try:
            wait_s = self._connect_wait_s if entry.upstream else self._wait_s
            async with asyncio.timeout(wait_s):
                while entry.resident.state is not ModelState.READY:
                    await self._load_for_call(entry)
        except TimeoutError:
            raise errors.ModelLoading(model=entry.name, retry_after=_LOAD_RETRY_S) from None
        finally:
            entry.resident.num_waiting -= 1
            self.changes.wake()

    async def _load_for_call(self, entry: ModelEntry) -> None:
        """Wait for the running transition, or load the model. Raises the error of a failed load."""
        transition = self._lifecycle.transition(entry)
        if transition is None:
            if entry.is_removed:
                raise errors.ModelNotFound(model=entry.name)
            if entry.resident.state is ModelState.FAILED:
                raise _load_failure(entry)
            if entry.policy is LoadPolicy.MANUAL:
                raise errors.ModelNotLoaded(model=entry.name)
            transition = self._lifecycle.load(entry)
        try:
            await _finish(transition)
        except errors.ModelLoadFailed:
            raise _load_failure(entry) from None

    # --- operators --------------------------------------------------------------------------------

    async def load(
        self, entry: ModelEntry, limits: RequestedLimits | None = None, *, wait: bool
    ) -> None:
        """Load a model, retrying one that failed to load. Returns at once unless `wait`.

        `limits` apply to this load and later ones; unset, the last ones are kept.

        Raises:
            ModelTooLarge: the model does not fit with these limits.
            InvalidField: the model is loaded with other limits, or is an upstream's.
            ModelLoading: the model is still unloading and `wait` is false.
            DomainError: with `wait`, the error of the failed load.
        """
        if limits is not None and entry.upstream is not None:
            problem = f"'{entry.name}' is a model of an upstream engine, which has its own limits"
            raise errors.InvalidField(field="limits", problem=problem)
        limits = limits or entry.requested
        if entry.resident.state is not ModelState.READY:
            await self.memory.refresh()  # before reading the state, which may change meanwhile
        while entry.resident.state is ModelState.UNLOADING:
            transition = self._lifecycle.transition(entry)
            if transition is None or not wait:
                raise errors.ModelLoading(model=entry.name, retry_after=_LOAD_RETRY_S)
            await asyncio.shield(transition)
        if entry.resident.state in (ModelState.AVAILABLE, ModelState.FAILED):
            self._lifecycle.check_fits(entry, limits)
            entry.requested = limits
            self._lifecycle.load(entry)
        elif limits != entry.requested:
            problem = "the model is already loaded with other limits: unload it first"
            raise errors.InvalidField(field="limits", problem=problem)
        transition = self._lifecycle.transition(entry)
        if wait and transition is not None:
            await _finish(transition)

    async def unload(self, entry: ModelEntry, *, force: bool, wait: bool) -> None:
        """Unload a model when its last use ends, or at once with `force`. A running load is
        cancelled; unloading a model that is not loaded does nothing."""
        if entry.resident.state is ModelState.LOADING:
            await self._lifecycle.cancel_load(entry)
        if entry.resident.state is ModelState.READY:
            self._lifecycle.unload(entry)
        if entry.resident.state is not ModelState.UNLOADING:
            return  # another caller may already be loading it again
        transition = self._lifecycle.transition(entry)
        if force and entry.engine is not None:
            await entry.engine.close(errors.ModelUnloaded(model=entry.name))
            if entry.media is not None:
                await entry.media.encoder.close(errors.ModelUnloaded(model=entry.name))
        if wait and transition is not None:
            await asyncio.shield(transition)

    async def remove(self, entry: ModelEntry, *, force: bool) -> None:
        """Remove a model: new calls do not find it, running ones finish, unless `force` ends them.
        Returns when its memory is free."""
        self.catalog.hide(entry)
        self.changes.notify()
        await self.unload(entry, force=force, wait=True)
        await self.catalog.discard(entry)

    async def unload_idle(self) -> None:
        """Unload models that were idle for their `idle_ttl_s`, until cancelled."""
        while True:
            for entry in self.catalog:
                if entry.resident.is_expired(self._clock()):
                    self._lifecycle.unload(entry)
            await asyncio.sleep(_IDLE_CHECK_S)

    async def watch(self, name: str = "") -> AsyncIterator[ModelEntry | PendingModel | str]:
        """Yield the model with this name, or every one, and again whenever it changes; the name of
        one that was removed."""
        versions: dict[str, int] = {}

        def changed() -> list[ModelEntry | PendingModel]:
            models = self.catalog.watched(name).values()
            return [each for each in models if each.version > versions.get(each.name, -1)]

        def removed() -> list[str]:
            return [each for each in versions if each not in self.catalog.watched(name)]

        while True:
            for gone in removed():
                del versions[gone]
                yield gone
            for each in changed():
                versions[each.name] = each.version
                yield each
            await self.changes.wait_for(lambda: bool(changed() or removed()))


def _load_failure(entry: ModelEntry) -> errors.ModelLoadFailed:
    """The error of a failed load, without what only operators may see."""
    problem = entry.shown_problem(to_operator=False)
    return errors.ModelLoadFailed(model=entry.name, problem=problem)


async def _finish(transition: Transition) -> None:
    """Wait for a transition. Raises the error of a failed load."""
    error = await asyncio.shield(transition)
    if error is not None:
        raise error
