"""Ends a child process when its supervisor is gone: the kernel closes the pipe between them."""

import os
import signal
import threading
import time

DRAIN_PATIENCE_S = 5.0


class ParentPipe:
    """The supervisor's end of the pipe, open while it runs."""

    def __init__(self) -> None:
        self.child_end, self._own_end = os.pipe()

    def close(self) -> None:
        """Let go; children that still follow end."""
        os.close(self.child_end)
        os.close(self._own_end)


def exit_with_parent(child_end: int, patience_s: float = DRAIN_PATIENCE_S) -> None:
    """Make this process end when its supervisor does: by SIGTERM, `patience_s` later by SIGKILL.

    The second signal goes to the process group, so that the engine goes too; the supervisor starts
    each service in a group of its own.
    """

    def wait_for_end() -> None:
        while os.read(child_end, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience_s)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait_for_end, name="lifeline", daemon=True).start()
