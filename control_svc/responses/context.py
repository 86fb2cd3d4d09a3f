"""The context of a response: its history, decrypted and truncated."""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from control_svc.agent.prompt import find_start
from control_svc.base.ids import RESPONSE, IdSource
from control_svc.db.transaction import Clock, Transaction
from control_svc.inference.models import Models
from control_svc.inference.turn_client import TokenCounter
from control_svc.inference.turns import TurnRequest
from control_svc.items.model import Compaction, Content, Item, Reasoning, TimelineItem
from control_svc.items.queries import TimelineQueries
from control_svc.responses.compaction import Compactor
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.model import NewResponse, Response, ResponseState, Summary, Truncation
from control_svc.responses.queries import ResponseQueries
from control_svc.responses.recorder import ResponseRecorder
from control_svc.responses.tools import ResponseTools
from svc_kit.errors import ContextLengthExceeded, PreviousResponseNotFound, SealInvalid, TooLong

MAX_HISTORY_BYTES: Final = 64 * 1024 * 1024
"""Far more than any context length."""


class History(NamedTuple):
    """All items up to and including those of a response."""

    items: list[Item]
    keep_for: str
    """`TurnRequest.keep_for` of the turns."""


async def read_history(tx: Transaction, response_id: str) -> History:
    """Read the items up to those of a response. Raises PreviousResponseNotFound or TooLong."""
    num_bytes = await ResponseQueries(tx).num_chain_bytes(response_id)
    _check_size("previous_response_id", num_bytes)
    links = await ResponseQueries(tx).chain(response_id)
    if not links:
        raise PreviousResponseNotFound(response=response_id)
    first = links[0]
    own = [placed.item for link in links for placed in link.items]
    if first.is_compacted:
        return History(own, first.object_id)
    if first.previous_id:
        raise PreviousResponseNotFound(response=first.previous_id)
    if not first.conversation_id:
        return History(own, first.object_id)
    conversation = await read_conversation(tx, first.conversation_id)
    end = first.conversation_end
    earlier = [placed.item for placed in conversation if placed.position < end]
    return History([*earlier, *own], first.object_id)


async def read_conversation(tx: Transaction, conversation_id: str) -> list[TimelineItem]:
    """Read all items of a conversation. Raises TooLong."""
    _check_size("conversation", await TimelineQueries(tx).num_bytes(conversation_id))
    return await TimelineQueries(tx).read(conversation_id)


def _check_size(field: str, num_bytes: int) -> None:
    """Raise TooLong before a history is read that may exceed the memory of the process."""
    if num_bytes > MAX_HISTORY_BYTES:
        raise TooLong(field=field, length=num_bytes, limit=MAX_HISTORY_BYTES, unit="bytes")


def prompt_items(
    project: str, response: Response, items: Sequence[Item], cipher: ContentCipher
) -> list[Item]:
    """Return the items for the model: decrypted, with summaries expanded, and truncated.

    Raises SealInvalid.
    """
    decrypted = _decrypt(project, items, cipher)
    first = response.context_start
    start = next((index for index, item in enumerate(decrypted) if item.id == first), 0)
    return decrypted[start:]


def _decrypt(project: str, items: Sequence[Item], cipher: ContentCipher) -> list[Item]:
    decrypted: list[Item] = []
    for index, item in enumerate(items):
        match _open(project, item.content, cipher, index):
            case Summary() as summary:
                earlier = [] if summary.replaces_all else decrypted
                decrypted = [*earlier, *summary.expand(item)]
            case str() as reasoning:
                decrypted.append(item.with_content(Reasoning(text=reasoning), item.status))
            case None:
                decrypted.append(item)
    return decrypted


def _open(
    project: str, content: Content | None, cipher: ContentCipher, index: int
) -> Summary | str | None:
    """Decrypt a summary, or reasoning that cannot be read beside it; None for other contents.

    Raises SealInvalid, with the index of the item, for what was not encrypted here for the project.
    """
    match content:
        case Compaction(sealed=sealed):
            opened: Summary | str | None = cipher.open_summary(project, sealed)
        case Reasoning(sealed=sealed, text="") if sealed:
            opened = cipher.open_reasoning(project, sealed)
        case _:
            return None
    if opened is None:
        raise SealInvalid(field=f"input[{index}].encrypted_content")
    return opened


@dataclass(frozen=True)
class ResponseContext:
    """The context of the agent loop. Items are read once, and truncated if the client allows it."""

    all_items: Sequence[Item]
    own_ids: Collection[str]
    """Ids of the input and output items of the response itself."""
    recorder: ResponseRecorder
    counter: TokenCounter
    compactor: Compactor

    async def items(self) -> list[Item]:
        """Return all items in order."""
        return list(self.all_items)

    async def before_turn(self, request: TurnRequest, items: Sequence[Item]) -> list[Item]:
        """Return the items, compacted if the prompt exceeds the threshold of the response."""
        return await self.compactor.apply(self.recorder, request, items, self.own_ids)

    async def shortened(
        self, request: TurnRequest, items: Sequence[Item], error: ContextLengthExceeded
    ) -> list[Item] | None:
        """Return truncated items; None if the client does not allow truncation."""
        settings = self.recorder.response.settings
        if settings.truncation is not Truncation.AUTO:
            return None
        own = next((i for i, item in enumerate(items) if item.id in self.own_ids), 0)
        instructions = settings.instructions or ""
        start = await find_start(self.counter, request, instructions, items, error, own)
        if start is None:
            return None
        await self.recorder.set_context_start(items[start].id)
        return list(items[start:])


_SEED_BITS: Final = 53


@dataclass(frozen=True)
class ResponseFactory:
    """Validates requests and creates responses."""

    models: Models
    cipher: ContentCipher
    tools: ResponseTools
    ids: IdSource
    clock: Clock
    ttl: timedelta | None
    """Time to live of stored responses; None for no limit."""

    async def create(self, project: str, request: NewResponse) -> Response:
        """Validate a request and return the queued response, which is not stored yet.

        Raises MissingField, InvalidField, InvalidJson, OutOfRange, TooLong, UnsupportedField,
        UnsupportedValue, SealInvalid, and the errors of `Models.resolve`.
        """
        request.check()
        self.tools.check(request.settings.tools)
        for index, item in enumerate(request.input):
            _open(project, item.content, self.cipher, index)
        resolved = await self.models.resolve(
            project, request.settings.model, request.settings.options
        )
        now = self.clock()
        ttl = self.ttl if request.settings.store else None
        return Response(
            id=self.ids.new(RESPONSE),
            state=ResponseState.QUEUED,
            created_at=now,
            expires_at=None if ttl is None else now + ttl,
            settings=request.settings,
            model=resolved.model,
            options=resolved.options,
            seed=resolved.seed if resolved.seed is not None else secrets.randbits(_SEED_BITS),
            previous_id=request.previous_id,
            conversation_id=request.conversation_id,
        )
