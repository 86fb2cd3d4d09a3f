"""Where responses are kept: in the database and the event log, or nowhere."""

from collections.abc import Awaitable, Callable, Sequence

from control_svc.domain.items import Item
from control_svc.domain.response_events import EventCodec, ResponseEvent
from control_svc.domain.responses import Response, ResponseState
from control_svc.storage.repositories.conversations import SqlConversations
from control_svc.storage.repositories.responses import SqlResponses
from control_svc.storage.repositories.streams import SqlEventStreams
from control_svc.storage.repositories.timelines import SqlTimelines
from control_svc.storage.unit_of_work import Transaction
from control_svc.usecases.streaming import StreamWriter

Say = Callable[[Sequence[ResponseEvent]], Awaitable[None]]
"""Tells a reader."""
_KEPT_BY_CONVERSATIONS = (ResponseState.COMPLETED, ResponseState.INCOMPLETE)


class StoredLedger:
    """Keeps a response by the writer of its stream."""

    def __init__(self, project: str, writer: StreamWriter, codec: EventCodec) -> None:
        self._project = project
        self._writer = writer
        self._encode = codec.encode

    async def tell(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """Visible after the next group commit."""
        await self._writer.add(list(map(self._encode, events)), token_ids, turn=turn)

    async def keep(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
        changed: Sequence[Item] = (),
    ) -> None:
        """One transaction, with everything told before."""

        async def change(tx: Transaction) -> None:
            await _write(tx, self._project, response, items, changed)

        await self.tell(turn, events)
        await self._writer.commit(change, progress=True)

    async def end(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
    ) -> None:
        """The response's end, its stream's and its job's are one transaction."""

        async def change(tx: Transaction) -> None:
            await _write(tx, self._project, response, items)
            await close_conversation(tx, self._project, response)

        await self.tell(turn, events)
        await self._writer.finish(change)


class TransactionLedger:
    """Keeps a response in a transaction of somebody else's, which has locked its job and its
    row."""

    def __init__(self, project: str, tx: Transaction, codec: EventCodec) -> None:
        self._project = project
        self._tx = tx
        self._encode = codec.encode
        self._told: list[ResponseEvent] = []

    async def tell(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """With the end."""
        self._told += events

    async def keep(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
        changed: Sequence[Item] = (),
    ) -> None:
        """With the commit of the transaction."""
        await self.tell(turn, events)
        await _write(self._tx, self._project, response, items, changed)

    async def end(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
    ) -> None:
        """With the commit of the transaction."""
        await self.keep(turn, response, events, items)
        await close_conversation(self._tx, self._project, response)
        encoded = list(map(self._encode, self._told))
        await SqlEventStreams(self._tx).end(self._project, response.id, encoded)


class TransientLedger:
    """Keeps nothing: readers hear, and that is all."""

    def __init__(self, say: Say) -> None:
        self._say = say

    async def tell(
        self, turn: int, events: Sequence[ResponseEvent], token_ids: Sequence[int] = ()
    ) -> None:
        """Tell whoever asked for the response."""
        if events:
            await self._say(events)

    async def keep(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
        changed: Sequence[Item] = (),
    ) -> None:
        """As `tell`."""
        await self.tell(turn, events)

    async def end(
        self,
        turn: int,
        response: Response,
        events: Sequence[ResponseEvent],
        items: Sequence[Item] = (),
    ) -> None:
        """As `tell`."""
        await self.tell(turn, events)


async def close_conversation(tx: Transaction, project: str, response: Response) -> None:
    """Let the conversation go, with the response's input and output where there is an answer."""
    if not response.conversation_id:
        return
    found = await SqlConversations(tx).lock(project, response.conversation_id)
    if response.state in _KEPT_BY_CONVERSATIONS:
        placed = await SqlTimelines(tx).since(project, response.id)
        own = {item.id for item in response.output}
        given = [each.item for each in placed if each.item.id not in own]
        await SqlTimelines(tx).link(project, found.id, given)
        await SqlTimelines(tx).link(project, found.id, response.output, origin=response.id)
    await SqlConversations(tx).update(project, found.released_by(response.id))


async def _write(
    tx: Transaction,
    project: str,
    response: Response,
    items: Sequence[Item],
    changed: Sequence[Item] = (),
) -> None:
    for item in changed:
        await SqlTimelines(tx).update(project, item)
    await SqlTimelines(tx).append(project, response.id, items, origin=response.id)
    await SqlResponses(tx).update(project, response)
