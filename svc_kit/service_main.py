"""Runs one service in its own process: `python -m gateway`, and likewise for the others."""

import asyncio
import ctypes
import functools
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import uvloop

from svc_kit.lifecycle import StartupError
from svc_kit.logs import configure_logging, set_log_level
from svc_kit.settings.groups import SettingsT, load_settings
from svc_kit.settings.reloader import ignore_hangup

Serve = Callable[[SettingsT, Callable[[], SettingsT]], Coroutine[Any, Any, None]]
"""Serves until a signal, with the settings and with a function that reads them again."""


_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MALLOC_BYTES: Final = 2 * 1024 * 1024


def run(serve: Serve[SettingsT], settings: SettingsT, read: Callable[[], SettingsT]) -> None:
    """Serve on an event loop of uvloop. Raises StartupError."""
    _configure_malloc()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, read))


def main(name: str, cls: type[SettingsT], serve: Serve[SettingsT]) -> int:
    """Run a service until it is stopped, and return the exit code. Settings come from the
    environment and from the TOML file that the first argument may name."""
    configure_logging(name)
    ignore_hangup()
    toml = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    read = functools.partial(load_settings, cls, toml=toml)
    try:
        settings = read()
        set_log_level(settings.log_level)
        run(serve, settings, read)
    except StartupError as error:
        sys.stderr.write(f"{error}\n")
        return error.EXIT_CODE
    return 0


def _configure_malloc() -> None:
    """Make glibc allocate blocks of up to 2 MiB from the heap and keep that much of it when free;
    it returns larger ones when they are freed.

    By default both thresholds grow with the blocks that are freed: at first it maps and unmaps
    memory for every block of a file's bytes, and after some large requests the heap keeps what they
    needed. Does nothing with other C libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MALLOC_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _MALLOC_BYTES)
