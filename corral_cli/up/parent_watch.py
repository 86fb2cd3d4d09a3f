"""Ends a child process when its supervisor exits. The kernel then closes the pipe between them."""

import os
import signal
import threading
import time

_DRAIN_TIMEOUT_S = 5.0


class ParentPipe:
    """A pipe whose write end stays open while the supervisor runs."""

    def __init__(self) -> None:
        self.child_end, self._own_end = os.pipe()

    def close(self) -> None:
        """Close both ends. Children that still read the pipe exit."""
        os.close(self.child_end)
        os.close(self._own_end)


def exit_with_parent(child_end: int, timeout_s: float = _DRAIN_TIMEOUT_S) -> None:
    """Send this process SIGTERM when its supervisor exits, and SIGKILL `timeout_s` later.

    SIGKILL goes to the process group, which includes the engine process. The supervisor starts
    each service in a process group of its own.
    """

    def watch_pipe() -> None:
        while os.read(child_end, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(timeout_s)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch_pipe, name="lifeline", daemon=True).start()
