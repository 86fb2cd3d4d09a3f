"""What the use cases of responses need from the outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from control_svc.domain.compactions import Summary
from control_svc.domain.items import Item, PlacedItem
from control_svc.domain.responses import Response, ResponseSettings


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


class ResponseRepository(Protocol):
    """The rows of responses; their own items are in timelines of the same ids."""

    async def add(self, project: str, response: Response) -> None:
        """Keep a new response."""

    async def get(self, project: str, response_id: str) -> Response:
        """The response without its output. Raises ResponseNotFound."""

    async def lock(self, project: str, response_id: str) -> Response:
        """As `get`; until the end of the transaction nobody else changes it."""

    async def update(self, project: str, response: Response) -> None:
        """Keep what has changed of a locked response; its output is not in the row."""

    async def delete(self, project: str, response_id: str) -> None:
        """Forget a response, its items where nothing else has them, and its stream."""

    async def chain(self, project: str, response_id: str) -> list[Link]:
        """The responses up to one, oldest first, with all items, in one query.

        It begins where there is nothing before, where the one before is gone, or with a response
        whose own items hold everything before. Empty: there is no such response.
        """

    async def start(self, project: str, response_id: str) -> Link | None:
        """The first link of `chain`, without its items."""

    async def num_chain_bytes(self, project: str, response_id: str) -> int:
        """How long the documents of what `chain` would read are; nothing is read for it."""

    async def words_after(self, project: str, response_id: str) -> list[Item]:
        """What has become of a response's questions in those that go on from it: their remote
        calls, and the words of those that have not ended, and may make some."""

    async def drop_expired(self, now: datetime, limit: int) -> list[Expired]:
        """Forget responses of all projects whose time has come and from which none goes on."""


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
