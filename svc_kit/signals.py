"""SIGTERM and SIGINT as an event: the first asks a service to drain, the second ends it."""

import asyncio
import signal
from typing import Final

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets.

    From then on the signals do what they do by default, so that an operator who loses patience with
    the drain sends another. Call it in the running event loop of the main thread.
    """
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        stopping.set()
        for number in _STOPPING:
            loop.remove_signal_handler(number)

    for number in _STOPPING:
        loop.add_signal_handler(number, stop)
    return stopping
