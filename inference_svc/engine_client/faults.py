"""Fault injection for tests, off unless a setting enables it."""

import os
from multiprocessing.connection import Connection
from typing import Any

from inference_svc.engine.request import Submit


class AbortingPipe:
    """An engine's pipe at which the process aborts, as a native assertion would make it, with the
    first request that has a text among its stop texts."""

    def __init__(self, pipe: "Connection[Any, Any]", stop_text: str) -> None:
        self.send = pipe.send
        self._pipe = pipe
        self._stop_text = stop_text

    def recv(self) -> Any:
        """The next command."""
        command = self._pipe.recv()
        if isinstance(command, Submit) and self._stop_text in command.request.stop:
            os.abort()
        return command
