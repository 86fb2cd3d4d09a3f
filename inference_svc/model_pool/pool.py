"""The pool of loaded models: uses of calls, load and unload by operators, memory that is free."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from inference_svc.engine_client.client import DRAIN_RETRY_S, EngineState
from inference_svc.llama import devices
from inference_svc.machine import available_memory_bytes
from inference_svc.model_pool.catalog import Catalog, KnownModel, LoadedModel, ServedModel
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_pool.lifecycle import (
    Loader,
    Memory,
    ModelChangeSignal,
    ModelLifecycle,
    plan_start,
)
from inference_svc.models.device_memory import DeviceBytes
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import ModelFile
from inference_svc.models.placement import LoadPolicy
from svc_kit.errors import (
    Draining,
    InvalidField,
    ModelLoadFailed,
    ModelLoading,
    ModelNotLoaded,
    ModelTooLarge,
    ModelUnloaded,
)
from svc_kit.lifecycle import StartupError


class FreeMemory:
    """The free memory of the machine and of each GPU. Use on the event loop.

    `held` returns what all engines hold now; `ask` returns the free bytes of each GPU, None where
    they cannot be read.
    """

    def __init__(
        self,
        held: Callable[[], DeviceBytes],
        ask: Callable[[], dict[str, int] | None] = devices.free_bytes_from_outside,
    ) -> None:
        self._held = held
        self._ask = ask
        self._seen: DeviceBytes | None = None
        self._held_then = DeviceBytes()

    async def look(self) -> None:
        """Refresh the free memory; a value that cannot be read keeps its last reading. A GPU that
        was reported before and no longer answers is taken to be full.
        """
        if self._seen is not None and not self._seen.devices:
            return  # no GPU appears while we run
        before = self._held()
        found = await asyncio.to_thread(self._ask)
        if found is None:
            return
        names = found if self._seen is None else self._seen.devices
        self._seen = DeviceBytes(devices={name: found.get(name, 0) for name in names})
        # Nobody knows on which side of the answer something was taken or given back meanwhile: of
        # both numbers the smaller one never promises too much.
        self._held_then = before.without(before.without(self._held()))

    def now(self) -> DeviceBytes:
        """What can be taken without pushing others out."""
        held, seen = self._held(), self._seen or DeviceBytes()
        given_back = self._held_then.without(held)
        left = (seen + given_back).without(held.without(self._held_then))
        devices = {name: left.devices[name] for name in seen.devices}
        return DeviceBytes(available_memory_bytes(), devices)


_START_RETRY_S = 2.0
_LOAD_RETRY_S = 5.0


class ModelPool:
    """Who is in memory. All methods run on the event loop.

    `wait_s` is how long a call waits for its model; `on_change` hears that a model, or the state of
    all, has changed.
    """

    def __init__(
        self,
        catalog: Catalog,
        loader: Loader,
        memory: Memory,
        *,
        wait_s: float,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.catalog = catalog
        self._memory = memory
        self._wait_s = wait_s
        self._clock = clock
        self._changes = ModelChangeSignal(on_change)
        self._moving = ModelLifecycle(catalog, loader, memory, self._changes, clock)
        self._is_open = False
        self.is_draining = False
        self._num_calls = 0

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is to be there from the start. Raises `StartupError`."""
        first = [each for each in self.catalog if each.policy is LoadPolicy.START]
        try:
            sizes = plan_start(first, self._memory)
        except ModelTooLarge as error:
            remedy = "Ask for fewer slots or a shorter context, or let models load on demand"
            raise StartupError(f"{error.message} {remedy}") from error
        for known, size in zip(first, sizes, strict=True):
            refusal = await self._moving.load(known, size)
            if refusal is not None:
                raise StartupError(known.resident.problem or refusal.message)

    def open(self) -> None:
        """Take calls from now on."""
        self._is_open = True
        self._changes.told()

    async def close(self) -> None:
        """End every engine; calls that still run fail with DRAINING."""
        await self._moving.close()

    def drain(self) -> None:
        """Accept no new requests; waiting and running ones continue."""
        self.is_draining = True
        self._changes.told()

    def undrain(self) -> None:
        """Take new calls again."""
        self.is_draining = False
        self._changes.told()

    async def wait_idle(self) -> None:
        """Return once no call waits or runs, and every slot is free."""
        await self._changes.until(lambda: self._num_calls == 0)
        await asyncio.gather(*(worker.wait_idle() for worker in self.catalog.workers))

    @property
    def state(self) -> EngineState:
        """How the engines are, all together: restarting where none is up but one should be."""
        if not self._is_open:
            return EngineState.STARTING
        states = {worker.state for worker in self.catalog.workers}
        if EngineState.RESTARTING in states and EngineState.SERVING not in states:
            return EngineState.RESTARTING
        return EngineState.DRAINING if self.is_draining else EngineState.SERVING

    # --- use --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def use(
        self,
        known: KnownModel,
        check: Callable[[ModelFile], None] = lambda _: None,
    ) -> AsyncIterator[LoadedModel]:
        """A model that stays loaded until the context ends. One that is not loaded is, now.

        Args:
            known: the model.
            check: raises where the model is not for what is asked of it.

        Raises:
            Draining, EngineRestarting: as they say.
            ModelLoading: the load takes longer than a request waits.
            ModelLoadFailed, ModelNotLoaded: only an operator can have it loaded.
            ModelTooLarge, MemoryInUse: its memory cannot be had at all, or not now.
        """
        self._check_open(known)
        check(known.file)
        with self._call():
            if known.resident.state is not ModelState.READY:
                await self._wait_until_ready(known)
            with self._lease(known) as loaded:
                loaded.worker.check_open()
                yield loaded

    async def front(self, known: KnownModel) -> ServedModel:
        """The vocabulary and template of a model, which need no engine. Raises `ModelLoading` or
        `ModelLoadFailed`."""
        if not self._is_open:
            raise ModelLoading(model=known.name, retry_after=_START_RETRY_S)
        try:
            return known.front or await self._moving.open(known)
        except StartupError as error:
            raise ModelLoadFailed(model=known.name, problem=str(error)) from error

    def _check_open(self, known: KnownModel) -> None:
        if self.is_draining:
            raise Draining(retry_after=DRAIN_RETRY_S)
        if not self._is_open:
            raise ModelLoading(model=known.name, retry_after=_START_RETRY_S)

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._num_calls += 1
        try:
            yield
        finally:
            self._num_calls -= 1
            if not self._num_calls:
                self._changes.wake()

    @contextmanager
    def _lease(self, known: KnownModel) -> Iterator[LoadedModel]:
        if known.front is None or known.worker is None:
            raise ModelLoading(model=known.name, retry_after=_LOAD_RETRY_S)
        known.resident.acquire(self._clock())
        try:
            yield LoadedModel(known.front, known.worker, known.digest)
        finally:
            known.resident.release(self._clock())
            if not known.resident.uses:
                self._changes.wake()

    async def _wait_until_ready(self, known: KnownModel) -> None:
        known.resident.awaited += 1
        try:
            async with asyncio.timeout(self._wait_s):
                while known.resident.state is not ModelState.READY:
                    await self._bring(known)
        except TimeoutError:
            raise ModelLoading(model=known.name, retry_after=_LOAD_RETRY_S) from None
        finally:
            known.resident.awaited -= 1
            self._changes.wake()

    async def _bring(self, known: KnownModel) -> None:
        """Wait for the move under way, or begin to load. Raises why that did not come about."""
        move = self._moving.of(known)
        if move is None:
            if known.resident.state is ModelState.FAILED:
                raise ModelLoadFailed(model=known.name, problem=known.resident.problem)
            if known.policy is LoadPolicy.MANUAL:
                raise ModelNotLoaded(model=known.name)
            move = self._moving.load(known)
        error = await asyncio.shield(move)
        if error is not None:
            raise error

    # --- operators --------------------------------------------------------------------------------

    async def load(
        self, known: KnownModel, limits: RequestedLimits | None = None, *, wait: bool
    ) -> None:
        """Load a model, also one that could not be loaded before, in the background unless `wait`.

        `limits` are for this load and those after it; without them those of the last stay. Raises
        `ModelTooLarge`, `InvalidField` where it is loaded with others already, `ModelLoading` where
        it is still being unloaded, and, when it waits, why the load did not come about.
        """
        limits = limits or known.requested
        if known.resident.state is not ModelState.READY:
            await self._memory.look()  # first of all: the state may change meanwhile
        while known.resident.state is ModelState.UNLOADING:
            await self._gone(known, wait=wait)
        if known.resident.state in (ModelState.AVAILABLE, ModelState.FAILED):
            self._moving.check_fits(known, limits)
            known.requested = limits
            self._moving.load(known)
        elif limits != known.requested:
            problem = "the model is loaded with others already: unload it first"
            raise InvalidField(field="limits", problem=problem)
        move = self._moving.of(known)
        if wait and move is not None:
            error = await asyncio.shield(move)
            if error is not None:
                raise error

    async def _gone(self, known: KnownModel, *, wait: bool) -> None:
        move = self._moving.of(known)
        if move is None or not wait:
            raise ModelLoading(model=known.name, retry_after=_LOAD_RETRY_S)
        await asyncio.shield(move)

    async def unload(self, known: KnownModel, *, force: bool, wait: bool) -> None:
        """Free a model when its last use ends, or at once by force. One that is not loaded is no
        error, and a load under way stops."""
        if known.resident.state is ModelState.LOADING:
            await self._moving.stop(known)
        if known.resident.state is ModelState.READY:
            self._moving.unload(known)
        if known.resident.state is not ModelState.UNLOADING:
            return  # somebody may be loading it anew by now
        move = self._moving.of(known)
        if force and known.worker is not None:
            await known.worker.close(ModelUnloaded(model=known.name))
        if wait and move is not None:
            await asyncio.shield(move)

    async def watch(self, watched: Sequence[KnownModel]) -> AsyncIterator[KnownModel]:
        """Each of these models, and again whenever it changes."""
        seen = dict.fromkeys((known.name for known in watched), -1)

        def news() -> list[KnownModel]:
            return [known for known in watched if known.version > seen[known.name]]

        while True:
            for known in news():
                seen[known.name] = known.version
                yield known
            await self._changes.until(lambda: bool(news()))
