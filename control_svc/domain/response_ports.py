"""What the use cases of responses need from the outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from control_svc.domain.compactions import Summary
from control_svc.domain.items import PlacedItem
from control_svc.domain.responses import ResponseSettings


@dataclass(frozen=True)
class Link:
    """A response of a chain, with its own items."""

    id: str
    previous_id: str
    conversation_id: str
    conversation_end: int
    is_compacted: bool
    items: Sequence[PlacedItem]

    @property
    def archive_name(self) -> str:
        """What a chain that begins here is archived for.

        One name for all of it: a longer state then takes the place of the shorter ones, where names
        of each response's own would keep them all; and whichever response is deleted, all states
        that hold its text are found.
        """
        return self.conversation_id or self.id


class Expired(NamedTuple):
    """A response whose time has come."""

    project: str
    id: str
    is_start: bool
    """Whether a chain began with it, and no conversation before."""


@dataclass(frozen=True)
class ModelFacts:
    """What a response shows of the model that answers it."""

    model: str
    """The name it is served under."""
    options: bytes
    """The caller's options, with the model's own sampling where they say nothing."""
    seed: int | None
    """The caller's; None: it said none."""


class Models(Protocol):
    """What the inference service knows without computing."""

    async def describe(self, project: str, settings: ResponseSettings) -> ModelFacts:
        """Raises ModelNotFound, and what makes the service unreachable."""


class Seals(Protocol):
    """What callers keep for us, and only this installation can read, for one project each."""

    def seal_thought(self, project: str, thought: str) -> str:
        """A thought; always sealed alike."""

    def open_thought(self, project: str, sealed: str) -> str | None:
        """The thought again; None: it was not sealed here for the project, or was changed."""

    def seal_summary(self, project: str, summary: Summary) -> str:
        """What stands for earlier items."""

    def open_summary(self, project: str, sealed: str) -> Summary | None:
        """The summary again; None: as with thoughts."""
