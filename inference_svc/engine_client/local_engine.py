"""Starts the process of a local engine, again and again if it ends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inference_svc.engine.request import Command
from inference_svc.engine_client.messages import EngineConfig, EngineMessage, Ready
from inference_svc.engine_client.process import ChildProcess, StartFailed

_ENGINE = "inference_svc.engine_process.main"


class LocalEngine:
    """Spawns engine processes with one configuration. A later one gets the measurements of those
    before it, and verifies touched or copied files with the `digest` that is known by then."""

    def __init__(
        self,
        config: EngineConfig,
        digest: Callable[[], str] = lambda: "",
        start_process: Callable[..., ChildProcess[Any, Command]] = ChildProcess,
    ) -> None:
        self._config = config
        self._digest = digest
        self._start_process = start_process

    def spawn(
        self,
        *,
        on_message: Callable[[EngineMessage | StartFailed], None],
        on_exit: Callable[[int], None],
    ) -> ChildProcess[Any, Command]:
        """Start a process."""

        def receive(message: EngineMessage | StartFailed) -> None:
            if isinstance(message, Ready):
                self._config = replace(self._config, warm_up=message.model.warm_up)
            on_message(message)

        config = replace(self._config, digest=self._digest() or self._config.digest)
        return self._start_process(_ENGINE, config, on_message=receive, on_exit=on_exit)
