"""Reconciles the adapters of this frontend with the state that the control service wants.

The wanted state is a value that is replaced; for each adapter at most one task works towards it and
compares again after every step.
"""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

from inference_svc.adapter_sync.cache import ChangeSignal
from inference_svc.adapter_sync.control_client import (
    FAILED,
    FETCHING,
    LOADING,
    READY,
    Control,
    Report,
)
from inference_svc.adapter_sync.installer import AdapterInstaller
from inference_svc.adapter_sync.state import DesiredAdapter, DesiredState, load_state, save_state
from inference_svc.engine_client.adapter_registry import AdapterState
from svc_kit.errors import (
    AdapterDigestMismatch,
    AdapterNotFound,
    DomainError,
    InternalError,
    ResourceExhausted,
    Unavailable,
)

log = logging.getLogger(__name__)
REPORT_INTERVAL_S: Final = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_AT_ONCE: Final = 4
_PASSING = (AdapterDigestMismatch, AdapterNotFound, ResourceExhausted, Unavailable)
"""What another try may mend: fetched badly, gone between two looks, busy, away."""


class Reconciler:
    """Reconciles the engines; reports come from `frontend` at `address`."""

    def __init__(
        self,
        control: Control,
        installer: AdapterInstaller,
        folder: Path,
        frontend: str,
        address: str,
        look_s: float = 1.0,
    ) -> None:
        """`folder` holds the desired state for a start without the control service. The engines are
        polled every `look_s` seconds, because a reload of adapters is not announced."""
        self._control = control
        self._installer = installer
        self._path = folder / "state.json"
        self._frontend = frontend
        self._address = address
        self._look_s = look_s
        self._state = DesiredState()
        self._installed: dict[str, DesiredAdapter] = {}
        self._failures: dict[str, tuple[DesiredAdapter, DomainError]] = {}
        self._holders: dict[tuple[str, str], str] = {}
        """By project and name: whose load or generation has it now. A name that was deleted and
        registered again waits until the adapter before it has gone."""
        self._fetching: set[str] = set()
        self._working: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._wanted_changed = ChangeSignal()
        self._news = ChangeSignal()

    async def load_saved(self) -> None:
        """Load what was wanted last and is here; what fails is reported later."""
        self._state = await asyncio.to_thread(load_state, self._path)
        here = [each for each in self._state.adapters.values() if self._installer.has_bytes(each)]
        for wanted in here:
            await self._try_to_install(wanted)

    async def run(self) -> None:
        """Follow and report until cancelled."""
        self._start_work()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow())
                tasks.create_task(self._report_periodically())
        finally:
            for task in self._working.values():
                task.cancel()
            await asyncio.gather(*self._working.values(), return_exceptions=True)

    # --- what is wanted ---------------------------------------------------------------------------

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                async for state in self._control.watch(self._state):
                    if pause > _FIRST_PAUSE_S:
                        log.info("following the control service again")
                    pause = _FIRST_PAUSE_S
                    await self._take(state)
            except DomainError as error:
                if pause == _FIRST_PAUSE_S:
                    log.warning("the desired adapters cannot be watched: %s", error)
            except Exception:  # logged only: the next attempt may succeed
                log.exception("the desired adapters cannot be watched")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _take(self, state: DesiredState) -> None:
        before, self._state = self._state.adapters, state
        for wanted in state.adapters.values():
            known = before.get(wanted.id)
            if known is not None and wanted.attempt > known.attempt:
                self._installer.forgive(wanted)
        for gone in before.keys() - state.adapters.keys():
            self._failures.pop(gone, None)
        try:
            await asyncio.to_thread(save_state, self._path, state)
        except OSError as error:
            log.warning("the desired adapters cannot be saved in %s: %s", self._path, error)
        self._start_work()
        self._wanted_changed.ring()

    # --- making it so -----------------------------------------------------------------------------

    def _start_work(self) -> None:
        for adapter_id in self._state.adapters.keys() | self._installed.keys():
            if adapter_id not in self._working:
                task = asyncio.create_task(self._work(adapter_id))
                self._working[adapter_id] = task

    async def _work(self, adapter_id: str) -> None:
        """Bring one adapter to what is wanted of it."""
        pause = _FIRST_PAUSE_S
        try:
            while not self._is_settled(adapter_id):
                if await self._step(adapter_id):
                    pause = _FIRST_PAUSE_S
                else:
                    await self._wanted_changed.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            del self._working[adapter_id]
            if adapter_id not in self._state.adapters:
                self._failures.pop(adapter_id, None)  # of a step that was under way when it went
            self._news.ring()

    def _is_settled(self, adapter_id: str) -> bool:
        wanted, installed = self._state.adapters.get(adapter_id), self._installed.get(adapter_id)
        failed = self._failures.get(adapter_id)
        if wanted is None:
            return installed is None
        if failed is not None and failed[0].content == wanted.content:
            return not isinstance(failed[1], _PASSING)
        return installed == wanted

    async def _step(self, adapter_id: str) -> bool:
        """Do what comes next; False where it failed and may be tried again after a pause."""
        wanted, installed = self._state.adapters.get(adapter_id), self._installed.get(adapter_id)
        if wanted is None or (installed is not None and installed.place != wanted.place):
            # Its name may be another one's now. New bytes under it take over when they are loaded.
            self._uninstall(adapter_id)
        elif installed is not None and installed.content == wanted.content:
            self._installer.tune(wanted)
            self._installed[adapter_id] = wanted
        else:
            async with self._room:
                return await self._try_to_install(wanted)
        return True

    def _uninstall(self, adapter_id: str) -> None:
        installed = self._installed.pop(adapter_id)
        del self._holders[installed.key]
        self._installer.unload(installed)

    async def _try_to_install(self, wanted: DesiredAdapter) -> bool:
        if self._holders.setdefault(wanted.key, wanted.id) != wanted.id:
            return False
        try:
            await self._install(wanted)
        except DomainError as error:
            if not isinstance(error, _PASSING):
                log.warning("adapter %s of %s: %s", wanted.name, wanted.project, error)
            self._failures[wanted.id] = wanted, error
            return not isinstance(error, _PASSING)
        except Exception:  # logged only: the other adapters continue
            log.exception("adapter %s of %s", wanted.name, wanted.project)
            self._failures[wanted.id] = wanted, InternalError(request_id="")
        else:
            self._installed[wanted.id] = wanted
            self._failures.pop(wanted.id, None)
        finally:
            if wanted.id not in self._installed:
                del self._holders[wanted.key]
        return True

    async def _install(self, wanted: DesiredAdapter) -> None:
        self._news.ring()
        if not self._installer.has_bytes(wanted):
            self._fetching.add(wanted.id)
            try:
                await self._installer.fetch(wanted, self._state.adapters)
            finally:
                self._fetching.discard(wanted.id)
                self._news.ring()
        await self._installer.load(wanted)

    # --- telling ----------------------------------------------------------------------------------

    async def _report_periodically(self) -> None:
        said: list[Report] | None = None
        said_at, clock = 0.0, asyncio.get_running_loop().time
        while True:
            reports = [self._report(wanted) for wanted in self._state.adapters.values()]
            if reports != said or clock() - said_at > REPORT_INTERVAL_S:
                with suppress(DomainError):  # control is unreachable: reported at the next poll
                    await self._control.report(self._frontend, self._address, reports)
                    said, said_at = reports, clock()
            await self._news.wait(self._look_s)

    def _report(self, wanted: DesiredAdapter) -> Report:
        failed = self._failures.get(wanted.id)
        adapter = self._installer.loaded(wanted)
        if failed is not None and failed[0].content == wanted.content:
            state = FETCHING if isinstance(failed[1], _PASSING) else FAILED
            return Report(wanted, state, "", failed[1].reason, failed[1].message)
        if adapter is None:
            return Report(wanted, FETCHING if wanted.id in self._fetching else LOADING)
        if adapter.error is not None:
            error = adapter.error
            return Report(wanted, FAILED, adapter.model, error.reason, error.message)
        is_ready = adapter.state is AdapterState.READY or self._installer.is_idle(adapter)
        return Report(wanted, READY if is_ready else LOADING, adapter.model)
