"""What the use cases of runs need from the outside."""

from typing import Protocol

from control_svc.domain.run_events import RunEvent
from control_svc.domain.turns import TurnRequest


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
