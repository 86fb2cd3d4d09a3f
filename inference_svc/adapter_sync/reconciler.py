"""Reconciles the adapters of this frontend with the desired state of the control service.

The desired state is an immutable value that is replaced. For each adapter at most one task works
towards it, and compares again after every step.
"""

import asyncio
import copy
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from inference_svc.adapter_sync.cache import ChangeSignal
from inference_svc.adapter_sync.control_client import (
    FAILED,
    FETCHING,
    LOADING,
    READY,
    SERVICE,
    Control,
    Report,
)
from inference_svc.adapter_sync.installer import AdapterInstaller
from inference_svc.adapter_sync.state import DesiredAdapter, DesiredState, load_state, save_state
from inference_svc.engine_client.adapter_registry import AdapterState
from svc_kit.adapter_rules import is_adapter_name
from svc_kit.auth.principal import current_principal
from svc_kit.errors import (
    AdapterDigestMismatch,
    AdapterNotFound,
    DomainError,
    InternalError,
    ModelLoading,
    ModelNotFound,
    ResourceExhausted,
    Unavailable,
    UpstreamUnavailable,
)
from svc_kit.lifecycle import StartupError
from svc_kit.logs import OutageLevel, log_errors
from svc_kit.tasks import retrieve_exception

log = logging.getLogger(__name__)
REPORT_INTERVAL_S: Final = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_MAX_CONCURRENT: Final = 4
_LOOKUP_TIMEOUT_S: Final = 2.0
_FAILED_LOOKUP_S: Final = 1.0
"""How long a failed lookup stands for others, such as the retries of its own call."""
_RETRYABLE = (AdapterDigestMismatch, AdapterNotFound, ResourceExhausted, Unavailable)
"""Errors that may not recur: damaged download, file evicted meanwhile, no memory, service down."""


class Reconciler:
    """Reconciles the adapters of all engines; reports states as `frontend`."""

    def __init__(
        self,
        control: Control,
        installer: AdapterInstaller,
        folder: Path,
        frontend: str,
        poll_interval_s: float = 1.0,
        outage_level: OutageLevel | None = None,
    ) -> None:
        """The desired state is saved in `folder` for a start without the control service. The
        engines are polled every `poll_interval_s`, because reloads of adapters send no signal."""
        self._control = control
        self._installer = installer
        self._path = folder / "state.json"
        self._frontend = frontend
        self._lookups = SharedLookup(self._look_up)
        self._poll_interval_s = poll_interval_s
        self._outage_level = outage_level or OutageLevel()
        self._state = DesiredState()
        self._installed: dict[str, DesiredAdapter] = {}
        self._failures: dict[str, tuple[DesiredAdapter, DomainError]] = {}
        self._owners: dict[tuple[str, str], str] = {}
        """The adapter id that owns a name, by project and name. An adapter that reuses the name of
        a deleted one waits until that is unloaded."""
        self._fetching: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._state_changed = ChangeSignal()
        self._status_changed = ChangeSignal()

    async def load_saved(self) -> None:
        """Load the adapters of the saved state that are cached; failures are reported later."""
        self._state = await asyncio.to_thread(load_state, self._path)
        self._installer.reserve_names(self._state.adapters.values())
        for desired in self._state.adapters.values():
            if self._installer.has_bytes(desired):
                await self._try_install(desired)

    async def run(self, address: str) -> None:
        """Watch the desired state, reconcile and report as the one at `address` until cancelled."""
        self._start_tasks()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch())
                tasks.create_task(self._report_periodically(address))
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def map_error(self, error: DomainError) -> DomainError:
        """The error for a caller whose model is not known here, which may be an adapter that has
        been registered: an error that can be retried, unless it cannot be loaded.

        The control service is asked, because the adapter may have been registered a moment ago, and
        because the process that is followed may have stopped. While it cannot be reached, nobody
        knows; the caller may retry.
        """
        name = error.metadata.get("model", "")
        if not isinstance(error, ModelNotFound) or not is_adapter_name(name):
            return error
        key = current_principal().project, name
        try:
            desired = _find(self._state, key) or _find(await self._lookups.get(), key)
        except DomainError as unreachable:
            return unreachable
        if desired is None:
            return error
        failed = self._failures.get(desired.id)
        if failed is not None and not isinstance(failed[1], _RETRYABLE):
            return error  # a retry would not help; its state has the reason
        return ModelLoading(model=name)

    async def _look_up(self) -> DesiredState:
        """Read the desired state of now. Raises UpstreamUnavailable, whatever the error of the
        control service is: the caller is not to blame."""
        try:
            async with (
                asyncio.timeout(_LOOKUP_TIMEOUT_S),
                aclosing(self._control.watch(self._state)) as states,
            ):
                return await anext(states)
        except (DomainError, StartupError, TimeoutError, StopAsyncIteration):
            raise UpstreamUnavailable(service=SERVICE) from None

    # --- desired state ----------------------------------------------------------------------------

    async def _watch(self) -> None:
        pause = _FIRST_PAUSE_S

        def level(error: Exception) -> int:
            return self._outage_level(error) if pause == _FIRST_PAUSE_S else logging.DEBUG

        while True:
            with log_errors(log, "the desired adapters cannot be watched", level):
                async for state in self._control.watch(self._state):
                    if pause > _FIRST_PAUSE_S:
                        log.info("watching the desired adapters again")
                    pause = _FIRST_PAUSE_S
                    await self._apply(state)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _apply(self, state: DesiredState) -> None:
        previous, self._state = self._state.adapters, state
        self._installer.reserve_names(state.adapters.values())
        for desired in state.adapters.values():
            old = previous.get(desired.id)
            if old is not None and desired.attempt > old.attempt:
                self._installer.allow_retry(desired)
        for removed in previous.keys() - state.adapters.keys():
            self._failures.pop(removed, None)
        try:
            await asyncio.to_thread(save_state, self._path, state)
        except OSError as error:
            log.warning("the desired adapters cannot be saved in %s: %s", self._path, error)
        self._start_tasks()
        self._state_changed.notify()

    # --- reconciliation ---------------------------------------------------------------------------

    def _start_tasks(self) -> None:
        for adapter_id in self._state.adapters.keys() | self._installed.keys():
            if adapter_id not in self._tasks:
                self._tasks[adapter_id] = asyncio.create_task(self._reconcile(adapter_id))

    async def _reconcile(self, adapter_id: str) -> None:
        """Bring one adapter to its desired state."""
        pause = _FIRST_PAUSE_S
        try:
            while not self._is_reconciled(adapter_id):
                if await self._step(adapter_id):
                    pause = _FIRST_PAUSE_S
                else:
                    await self._state_changed.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            del self._tasks[adapter_id]
            if adapter_id not in self._state.adapters:
                self._failures.pop(adapter_id, None)  # of a step that ran when it was removed
            self._status_changed.notify()

    def _is_reconciled(self, adapter_id: str) -> bool:
        desired, installed = self._state.adapters.get(adapter_id), self._installed.get(adapter_id)
        failed = self._failures.get(adapter_id)
        if desired is None:
            return installed is None
        if failed is not None and failed[0].load_key == desired.load_key:
            return not isinstance(failed[1], _RETRYABLE)
        return installed == desired

    async def _step(self, adapter_id: str) -> bool:
        """Do the next step. Return False if it should be retried after a pause."""
        desired, installed = self._state.adapters.get(adapter_id), self._installed.get(adapter_id)
        if desired is None or (installed is not None and installed.target != desired.target):
            # Another adapter may have its name. New bytes for the same name replace the old ones
            # when they are loaded, without this step.
            installed = self._installed.pop(adapter_id)
            del self._owners[installed.key]
            self._installer.unload(installed)
        elif installed is not None and installed.load_key == desired.load_key:
            self._installer.update_scales(desired)
            self._installed[adapter_id] = desired
        else:
            async with self._slots:
                return await self._try_install(desired)
        return True

    async def _try_install(self, desired: DesiredAdapter) -> bool:
        if self._owners.setdefault(desired.key, desired.id) != desired.id:
            return False
        try:
            await self._install(desired)
        except DomainError as error:
            if not isinstance(error, _RETRYABLE):
                log.warning("adapter %s of %s not loaded: %s", desired.name, desired.project, error)
            self._failures[desired.id] = desired, error
            return not isinstance(error, _RETRYABLE)
        except Exception:  # logged only: the other adapters continue
            log.exception("adapter %s of %s cannot be loaded", desired.name, desired.project)
            self._failures[desired.id] = desired, InternalError(request_id="")
        else:
            self._installed[desired.id] = desired
            self._failures.pop(desired.id, None)
        finally:
            if desired.id not in self._installed:
                del self._owners[desired.key]
        return True

    async def _install(self, desired: DesiredAdapter) -> None:
        self._status_changed.notify()
        if not self._installer.has_bytes(desired):
            self._fetching.add(desired.id)
            try:
                await self._installer.fetch(desired, self._state.adapters)
            finally:
                self._fetching.discard(desired.id)
                self._status_changed.notify()
        await self._installer.load(desired)

    # --- reports ----------------------------------------------------------------------------------

    async def _report_periodically(self, address: str) -> None:
        last: tuple[list[Report], str] | None = None
        last_at, clock, revision = 0.0, asyncio.get_running_loop().time, ""
        while True:
            if self._installed.keys() | self._tasks.keys() <= self._state.adapters.keys():
                revision = self._state.revision
            reports = [self._report(desired) for desired in self._state.adapters.values()]
            if (reports, revision) != last or clock() - last_at > REPORT_INTERVAL_S:
                with suppress(DomainError):  # control is unreachable: reported at the next poll
                    await self._control.report(self._frontend, address, reports, revision)
                    last, last_at = (reports, revision), clock()
            await self._status_changed.wait(self._poll_interval_s)

    def _report(self, desired: DesiredAdapter) -> Report:
        failed = self._failures.get(desired.id)
        adapter = self._installer.find_loaded(desired)
        if failed is not None and failed[0].load_key == desired.load_key:
            state = FETCHING if isinstance(failed[1], _RETRYABLE) else FAILED
            return Report(desired, state, "", failed[1].reason, failed[1].message)
        if adapter is None:
            return Report(desired, FETCHING if desired.id in self._fetching else LOADING)
        if adapter.error is not None:
            error = adapter.error
            return Report(desired, FAILED, adapter.model, error.reason, error.message)
        is_ready = adapter.state is AdapterState.READY or self._installer.is_model_unloaded(adapter)
        return Report(desired, READY if is_ready else LOADING, adapter.model)


def _find(state: DesiredState, key: tuple[str, str]) -> DesiredAdapter | None:
    return next((each for each in state.adapters.values() if each.key == key), None)


class SharedLookup:
    """Lookups of which one runs at a time: each caller gets the result of one that began after it
    asked, together with all who asked meanwhile."""

    def __init__(self, look_up: Callable[[], Awaitable[DesiredState]]) -> None:
        self._look_up = look_up
        self._failure: tuple[float, DomainError] | None = None
        self._running: asyncio.Task[DesiredState] | None = None
        self._next: asyncio.Task[DesiredState] | None = None

    async def get(self) -> DesiredState:
        """Raises the error of the lookup, or of one that has just failed."""
        if self._failure is not None and time.monotonic() < self._failure[0] + _FAILED_LOOKUP_S:
            raise copy.copy(self._failure[1])
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._running))
            self._next.add_done_callback(retrieve_exception)
        return await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task[DesiredState] | None) -> DesiredState:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        try:
            return await self._look_up()
        except DomainError as error:
            self._failure = time.monotonic(), error
            raise


@asynccontextmanager
async def reconcile_adapters(reconciler: Reconciler | None, address: str) -> AsyncIterator[None]:
    """Load the saved desired state, then reconcile as the frontend at `address` until the context
    ends."""
    if reconciler is None:
        yield
        return
    await reconciler.load_saved()
    task = asyncio.create_task(reconciler.run(address))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
