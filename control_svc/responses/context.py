"""The context of a response: earlier items by one recursive query, decrypted and truncated."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, NamedTuple

from control_svc.agent.prompt import turn_messages
from control_svc.agent.truncation import first_that_fits
from control_svc.base.ids import RESPONSE, IdSource
from control_svc.db.transaction import Clock, Transaction
from control_svc.inference.models import Models
from control_svc.inference.turn_client import TokenCounter
from control_svc.inference.turns import TurnRequest
from control_svc.items.input_items import InputItem
from control_svc.items.model import Compaction, Item, Reasoning, TimelineItem
from control_svc.items.queries import TimelineQueries
from control_svc.responses.compaction import AutoCompaction, is_users
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.model import NewResponse, Response, ResponseState, Truncation
from control_svc.responses.queries import ResponseQueries
from control_svc.responses.recorder import ResponseRecorder
from control_svc.responses.tools import ResponseTools
from svc_kit.errors import ContextLengthExceeded, PreviousResponseNotFound, SealInvalid, TooLong

MAX_PAST_BYTES: Final = 64 * 1024 * 1024
"""Limit of the history of a response, far more than any context."""
_SHARE_AFTER_CUT: Final = 2
"""A past that is cut is cut to this part of the window, so that the next cut is far away."""


class Past(NamedTuple):
    """All items, a response's own at the end."""

    items: list[Item]
    archive_name: str
    """What the turns are archived for."""


async def read_past(tx: Transaction, project: str, response_id: str) -> Past:
    """The items before a response. Raises PreviousResponseNotFound or TooLong."""
    num_bytes = await ResponseQueries(tx).num_chain_bytes(project, response_id)
    _check_length("previous_response_id", num_bytes)
    links = await ResponseQueries(tx).chain(project, response_id)
    if not links:
        raise PreviousResponseNotFound(response=response_id)
    first = links[0]
    own = [placed.item for link in links for placed in link.items]
    if first.is_compacted:
        return Past(own, first.archive_name)
    if first.previous_id:
        raise PreviousResponseNotFound(response=first.previous_id)
    if not first.conversation_id:
        return Past(own, first.archive_name)
    before = await read_conversation(tx, project, first.conversation_id)
    end = first.conversation_end
    said = [placed.item for placed in before if placed.position < end]
    return Past([*said, *own], first.archive_name)


async def read_conversation(
    tx: Transaction, project: str, conversation_id: str
) -> list[TimelineItem]:
    """All items of a conversation. Raises TooLong."""
    _check_length("conversation", await TimelineQueries(tx).num_bytes(project, conversation_id))
    return await TimelineQueries(tx).read(project, conversation_id)


def _check_length(field: str, num_bytes: int) -> None:
    """Before anything is read: a caller may have stored more than this process can hold."""
    if num_bytes > MAX_PAST_BYTES:
        raise TooLong(field=field, length=num_bytes, limit=MAX_PAST_BYTES, unit="bytes")


def visible(
    project: str, response: Response, items: Sequence[Item], cipher: ContentCipher
) -> list[Item]:
    """The items as the model of a response sees them, from where its past was cut on.

    Raises SealInvalid.
    """
    seen = _unsealed(project, items, cipher)
    first = response.context_start
    start = next((place for place, item in enumerate(seen) if item.id == first), 0)
    return seen[start:]


def _unsealed(project: str, items: Sequence[Item], cipher: ContentCipher) -> list[Item]:
    seen: list[Item] = []
    for index, item in enumerate(items):
        match item.content:
            case Compaction(sealed=sealed):
                summary = cipher.open_summary(project, sealed)
                if summary is None:
                    raise SealInvalid(field=f"input[{index}].encrypted_content")
                seen = [*([] if summary.replaces_all else seen), *summary.shown(item)]
            case Reasoning(sealed=sealed, text="") if sealed:
                thought = cipher.open_thought(project, sealed)
                if thought is None:
                    raise SealInvalid(field=f"input[{index}].encrypted_content")
                seen.append(item.with_content(Reasoning(text=thought), item.status))
            case _:
                seen.append(item)
    return seen


class ResponseContext:
    """The context of the loop: items that are read once, and cut where the caller allows it."""

    def __init__(
        self,
        items: Sequence[Item],
        own: Sequence[Item],
        recorder: ResponseRecorder,
        counter: TokenCounter,
        thresholds: AutoCompaction,
    ) -> None:
        """`own` are the response's own items: its input, and what it has made."""
        self._items = items
        self._own = {item.id for item in own}
        self._recorder = recorder
        self._counter = counter
        self._thresholds = thresholds

    async def items(self) -> list[Item]:
        """All items in order."""
        return list(self._items)

    async def before_turn(self, request: TurnRequest, items: Sequence[Item]) -> list[Item]:
        """The same, or a summary and what it keeps, where the prompt would be too long for the
        caller's threshold."""
        return await self._thresholds.kept(self._recorder, request, items, self._own)

    async def shortened(
        self, request: TurnRequest, items: Sequence[Item], error: ContextLengthExceeded
    ) -> list[Item] | None:
        """Fewer items; None: none may be left out."""
        settings = self._recorder.response.settings
        if settings.truncation is not Truncation.AUTO:
            return None
        starts = self._starts(items)
        if not starts:
            return None

        async def fits(start: int) -> bool:
            messages = turn_messages(settings.instructions or "", items[start:])
            tokens = await self._counter.count(replace(request, messages=messages))
            return tokens * _SHARE_AFTER_CUT <= error.context_tokens

        start = await first_that_fits(starts, fits)
        await self._recorder.cut(items[start].id)
        return list(items[start:])

    def _starts(self, items: Sequence[Item]) -> list[int]:
        """Where truncated items may begin: at a user message, or at the response's own input."""
        own = next((place for place, item in enumerate(items) if item.id in self._own), 0)
        return [
            place for place, item in enumerate(items) if place and (place == own or is_users(item))
        ]


_SEED_BITS: Final = 53


@dataclass(frozen=True)
class Requests:
    """Checks requests, and makes responses of them."""

    models: Models
    cipher: ContentCipher
    tools: ResponseTools
    ids: IdSource
    clock: Clock
    keep: timedelta | None
    """How long responses are kept; None: for ever."""

    async def make(self, project: str, request: NewResponse) -> Response:
        """A response that has not begun.

        Raises MissingField, InvalidField, InvalidJson, OutOfRange, TooLong, UnsupportedField,
        UnsupportedValue, SealInvalid, and what `Models.describe` does.
        """
        request.check()
        self.tools.check(request.settings.tools)
        self.check_seals(project, request.input)
        facts = await self.models.resolve(project, request.settings.model, request.settings.options)
        now = self.clock()
        keeps = self.keep if request.settings.store else None
        return Response(
            id=self.ids.new(RESPONSE),
            state=ResponseState.QUEUED,
            created_at=now,
            expires_at=None if keeps is None else now + keeps,
            settings=request.settings,
            model=facts.model,
            options=facts.options,
            seed=facts.seed if facts.seed is not None else secrets.randbits(_SEED_BITS),
            previous_id=request.previous_id,
            conversation_id=request.conversation_id,
        )

    def check_seals(self, project: str, given: tuple[InputItem, ...]) -> None:
        """That what is sealed was sealed here, for this project. Raises SealInvalid."""
        for index, item in enumerate(given):
            match item.content:
                case Reasoning(sealed=sealed) if sealed:
                    opened: object = self.cipher.open_thought(project, sealed)
                case Compaction(sealed=sealed):
                    opened = self.cipher.open_summary(project, sealed)
                case _:
                    continue
            if opened is None:
                raise SealInvalid(field=f"input[{index}].encrypted_content")
