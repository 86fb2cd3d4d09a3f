"""Runs one service in its own process: `python -m gateway`, and likewise for the others."""

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from svc_kit.lifecycle import StartupError
from svc_kit.logs import configure_logging, set_log_level
from svc_kit.settings.groups import SettingsT, load_settings
from svc_kit.settings.reloader import ignore_hangup

Serve = Callable[[SettingsT, Callable[[], SettingsT]], Coroutine[Any, Any, None]]
"""Serves until a signal, with the settings and with a function that reads them again."""


def run(serve: Serve[SettingsT], settings: SettingsT, read: Callable[[], SettingsT]) -> None:
    """Serve on an event loop of uvloop. Raises StartupError."""
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
