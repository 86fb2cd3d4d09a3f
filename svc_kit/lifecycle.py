"""Start and stop of a service process: StartupError, imports, signal handling, systemd."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final


class StartupError(Exception):
    """A service cannot start; the message tells the operator what is wrong and how to fix it.

    `__main__` prints it to stderr and exits with `EXIT_CODE`.
    """

    EXIT_CODE = 2


class StartupOutage(StartupError):
    """A service cannot start now, but may later with the same settings: what it needs is away, full
    or in use."""

    EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h


@contextmanager
def importing_modules() -> Iterator[None]:
    """Wrap the imports of a service. The garbage collector does not run meanwhile, and ignores what
    was imported afterwards: each of its full runs would take a tenth of a second longer."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals() -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets.

    After that the signals have their default effect, so that a second one ends a drain. Call it in
    the event loop of the main thread.
    """
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        notify_systemd("STOPPING=1")
        stopping.set()
        for number in _STOPPING:
            loop.remove_signal_handler(number)

    for number in _STOPPING:
        loop.add_signal_handler(number, stop)
    return stopping


NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"


def notify_systemd(state: str) -> None:
    """Send a state, such as READY=1, to systemd (`Type=notify`); do nothing without it."""
    address = os.environ.get(NOTIFY_SOCKET, "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # in the abstract namespace
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), address)
