"""Summing up before a turn, where the turn's own wishes have to go with it."""

from datetime import UTC, datetime

from control_svc.agent.prompt import turn_messages
from control_svc.base.ids import IdSource
from control_svc.inference.turns import TurnRequest
from control_svc.items.model import Item, ItemStatus, Message, Role, Text
from control_svc.jobs.model import JobPriority
from control_svc.responses.compaction import AutoCompaction, Compactor
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.model import Response, ResponseSettings, ResponseState
from control_svc.responses.recorder import NullSink, ResponseRecorder
from svc_kit.encryption import KEY_BYTES, Sealer
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
    turns, cipher = (
        ScriptedTurns(lambda _: says("Many times a")),
        ContentCipher(Sealer(bytes(KEY_BYTES))),
    )
    thresholds = AutoCompaction(Compactor(turns, cipher, IDS, now, 100), ScriptedModels())
    response = Response(
        id=IDS.new("resp_"),
        state=ResponseState.QUEUED,
        created_at=now(),
        settings=ResponseSettings(store=False, compact_threshold=1000),
        model="m",
        options=b"",
        seed=1,
    )
    recorder = ResponseRecorder("p", response, (), NullSink(nobody), cipher)
    items = [said(PAST), question := said("b")]
    request = TurnRequest(
        project="p",
        model="m",
        messages=turn_messages("", items),
        seed=1,
        priority=JobPriority.BATCH,
    )
    kept = await thresholds.kept(recorder, request, items, {question.id})

    assert kept[1:] == [question]
    assert [turn.priority for turn in turns.requests] == [JobPriority.BATCH]
