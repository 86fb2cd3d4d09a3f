"""Restores the committed state of a response, and ends it for a caller or a dead letter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from control_svc.agent.drafts import Draft
from control_svc.db.transaction import Transaction
from control_svc.event_log.queries import StreamQueries
from control_svc.items.model import Item, ItemFilter
from control_svc.items.queries import TimelineQueries
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.events import EventCodec, EventType, rebuilt
from control_svc.responses.model import Response, Work
from control_svc.responses.recorder import ResponseRecorder, TransactionSink


@dataclass(frozen=True)
class RecordedOutput:
    """The recorded output of a response."""

    output: Sequence[Item]
    """In turns that have ended."""
    drafts: Sequence[Draft]
    """In the open turn."""
    token_ids: Sequence[int]
    """Sampled in the open turn."""


class Endings:
    """Reads and ends responses in transactions that have locked them."""

    def __init__(self, codec: EventCodec, cipher: ContentCipher) -> None:
        self._codec = codec
        self._cipher = cipher

    async def said(self, tx: Transaction, project: str, response: Response) -> RecordedOutput:
        """The recorded output of a response."""
        turn = response.work.num_turns
        created = await TimelineQueries(tx).read(
            project, response.id, item_filter=ItemFilter(origin=response.id)
        )
        events = await StreamQueries(tx).events_of_turn(project, response.id, turn)
        decoded = [self._codec.decode(event.data) for event in events]
        return RecordedOutput(
            output=[placed.item for placed in created],
            drafts=rebuilt(decoded, first_index=len(created)),
            token_ids=await StreamQueries(tx).tokens(project, response.id, turn),
        )

    async def end(
        self,
        tx: Transaction,
        project: str,
        response: Response,
        moment: EventType,
        ended: Callable[[Work], Response],
    ) -> Response:
        """End a locked response, whose job is locked or dead, with its output so far."""
        said = await self.said(tx, project, response)
        sink = TransactionSink(project, tx, self._codec)
        recorder = ResponseRecorder(project, response, said.output, sink, self._cipher, said.drafts)
        await recorder.end(recorder.broken_turn(), moment, ended)
        return recorder.response
