"""Start and stop of a process: StartupError, one line for the operator; and signals."""

import asyncio
import signal
from typing import Final


class StartupError(Exception):
    """A service cannot start; the message says what is wrong and how to put it right.

    Each `__main__` prints it to stderr and exits with `EXIT_CODE`.
    """

    EXIT_CODE = 2


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
