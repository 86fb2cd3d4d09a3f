"""Settings that change while a service runs: they are read again on SIGHUP."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Generic

from svc_kit.lifecycle import StartupError
from svc_kit.logs import log_errors, set_log_level
from svc_kit.settings.groups import ServiceSettings, SettingsT

_log = logging.getLogger(__name__)
Apply = Callable[[SettingsT], Awaitable[None]]
"""Makes a service use the new settings. Raises StartupError if it cannot."""


def has_terminal() -> bool:
    """Whether the process has a terminal, whose end sends SIGHUP too. Then the signal stops it."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR))
        return True
    return False


def ignore_hangup() -> None:
    """Ignore SIGHUP in a process without a terminal outside of `reloading_on_hangup`."""
    if not has_terminal():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@asynccontextmanager
async def reloading_on_hangup(reload: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Call `reload` after each SIGHUP while the context is open, one call at a time. Do nothing in
    a process with a terminal."""
    if has_terminal():
        yield
        return
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    reloads = asyncio.create_task(_reload_when(asked, reload))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        ignore_hangup()  # while the service drains
        reloads.cancel()


async def _reload_when(asked: asyncio.Event, reload: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asked.wait()
        asked.clear()
        with log_errors(_log, "the settings were not reloaded"):
            await reload()


class SettingsReloader(Generic[SettingsT]):
    """Reads the settings of a service again, and applies those that can change while it runs.

    `read` loads and validates them, and raises StartupError. `apply` has a function for each of
    those settings, by name; `log_level` needs none. Changes of others are logged as warnings.
    """

    def __init__(
        self,
        settings: SettingsT,
        read: Callable[[], SettingsT],
        apply: Mapping[str, Apply[SettingsT]],
    ) -> None:
        self._settings = settings
        self._read = read
        self._apply = {"log_level": _apply_log_level, **apply}

    async def reload(self) -> None:
        """Read and apply the settings once. If they have mistakes, nothing changes."""
        try:
            read = await asyncio.to_thread(self._read)
        except StartupError as error:
            _log.error("the settings were not reloaded: %s", error)
            return
        names = type(read).model_fields
        changed = [each for each in names if getattr(read, each) != getattr(self._settings, each)]
        applied, refused = [], []
        for name in changed:
            if (apply := self._apply.get(name)) is None:
                refused.append(name)
                continue
            try:
                await apply(read)
            except StartupError as error:
                _log.error("the setting %s was not reloaded: %s", name, error)
                continue
            applied.append(name)
        new = {name: getattr(read, name) for name in applied}
        self._settings = self._settings.model_copy(update=new)
        _log.info("reloaded the settings; changed: %s", ", ".join(applied) or "none")
        if refused:
            _log.warning("these settings change at the next start only: %s", ", ".join(refused))


async def _apply_log_level(settings: ServiceSettings) -> None:
    set_log_level(settings.log_level)
