"""What the use cases of runs need from the outside."""

from typing import Protocol

from control_svc.domain.listing import Window
from control_svc.domain.run_events import RunEvent
from control_svc.domain.run_steps import RunStep
from control_svc.domain.runs import Run
from control_svc.domain.turns import TurnRequest


class RunRepository(Protocol):
    """The rows of runs. Whoever locks a run and its job, its thread or its stream locks the job
    before it, and the others behind it."""

    async def add(self, project: str, run: Run) -> None:
        """Keep a new run."""

    async def get(self, project: str, thread_id: str, run_id: str) -> Run:
        """Raises RunNotFound, also for a run of another thread."""

    async def lock(self, project: str, run_id: str) -> Run:
        """The run, which until the end of the transaction nobody else changes. Raises
        RunNotFound."""

    async def page(self, project: str, thread_id: str, window: Window) -> list[Run]:
        """The thread's runs of a window."""

    async def update(self, project: str, run: Run) -> None:
        """Keep what has changed of a locked run; its settings never do."""


class RunStepRepository(Protocol):
    """The rows of steps. Whoever changes them has locked the run."""

    async def add(self, project: str, step: RunStep) -> None:
        """Keep a new step."""

    async def get(self, project: str, run_id: str, step_id: str) -> RunStep:
        """Raises RunStepNotFound."""

    async def open(self, project: str, run_id: str) -> list[RunStep]:
        """Those that have not ended, in order."""

    async def page(self, project: str, run_id: str, window: Window) -> list[RunStep]:
        """The run's steps of a window."""

    async def update(self, project: str, step: RunStep) -> None:
        """Keep what has changed of a step."""


class RunEventCodec(Protocol):
    """Events as the log keeps them."""

    def encode(self, event: RunEvent) -> bytes:
        """An event for the log."""

    def decode(self, data: bytes) -> RunEvent:
        """An event of the log."""


class TokenCounter(Protocol):
    """Counts what a model would be shown."""

    async def count(self, request: TurnRequest) -> int:
        """The tokens of the prompt of a turn. Raises what `TurnClient.run` does."""
