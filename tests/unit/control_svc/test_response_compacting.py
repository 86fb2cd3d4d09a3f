"""Summing up before a turn, where the turn's own wishes have to go with it."""

from datetime import UTC, datetime

from control_svc.domain.ids import IdSource
from control_svc.domain.items import Item, ItemStatus, Message, Role, Text
from control_svc.domain.jobs import JobPriority
from control_svc.domain.responses import Response, ResponseSettings, ResponseState
from control_svc.domain.turn_messages import turn_messages
from control_svc.domain.turns import TurnRequest
from control_svc.storage.envelopes import Envelopes
from control_svc.usecases.compacting import Compactor
from control_svc.usecases.response_compacting import Thresholds
from control_svc.usecases.response_ledgers import TransientLedger
from control_svc.usecases.response_narrating import ResponseNarrator
from svc_kit.sealing import KEY_BYTES, Sealer
from tests.support.response_client import ScriptedModels
from tests.support.scripted_turns import ScriptedTurns, says

PAST = "a " * 1100


def now() -> datetime:
    """The time."""
    return datetime(2026, 1, 1, tzinfo=UTC)


IDS = IdSource(now)


def said(text: str) -> Item:
    """What a user said."""
    content = Message(role=Role.USER, content=(Text(text=text),))
    return Item(id=IDS.new("msg_"), status=ItemStatus.COMPLETED, created_at=now(), content=content)


async def nobody(_events: object) -> None:
    """Reads."""


async def test_a_summary_is_as_urgent_as_the_turn_behind_it() -> None:
    """What lines of batches sum up takes no place from those who wait for an answer."""
    turns, seals = (
        ScriptedTurns(lambda _: says("Many times a")),
        Envelopes(Sealer(bytes(KEY_BYTES))),
    )
    thresholds = Thresholds(Compactor(turns, seals, IDS, now, 100), ScriptedModels())
    response = Response(
        id=IDS.new("resp_"),
        state=ResponseState.QUEUED,
        created_at=now(),
        settings=ResponseSettings(store=False, compact_threshold=1000),
        model="m",
        options=b"",
        seed=1,
    )
    narrator = ResponseNarrator("p", response, (), TransientLedger(nobody), seals)
    items = [said(PAST), question := said("b")]
    request = TurnRequest(
        project="p",
        model="m",
        messages=turn_messages("", items),
        seed=1,
        priority=JobPriority.BATCH,
    )
    kept = await thresholds.kept(narrator, request, items, {question.id})

    assert kept[1:] == [question]
    assert [turn.priority for turn in turns.requests] == [JobPriority.BATCH]
