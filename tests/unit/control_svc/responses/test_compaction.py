"""Compaction before a turn."""

from datetime import UTC, datetime
from unittest.mock import AsyncMock

from control_svc.agent.prompt import turn_messages
from control_svc.agent.recorder import NullSink
from control_svc.base.ids import IdSource
from control_svc.inference.generation_options import NO_OPTIONS
from control_svc.inference.turns import TurnRequest
from control_svc.items.model import Item, ItemStatus, Message, Role, Text, TokenLogprob
from control_svc.jobs.model import JobPriority
from control_svc.responses.compaction import Compactor
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.model import Response, ResponseSettings, ResponseState, Summary
from control_svc.responses.recorder import ResponseRecorder
from svc_kit.encryption import KEY_BYTES, Sealer
from tests.support.response_client import ScriptedModels
from tests.support.scripted_turns import ScriptedTurns, text_script

LONG_TEXT = "a " * 1100
NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDS = IdSource(lambda: NOW)
CIPHER = ContentCipher(Sealer(bytes(KEY_BYTES)))


def make_message_item(text: str, *logprobs: TokenLogprob) -> Item:
    content = Message(role=Role.USER, content=(Text(text=text, logprobs=logprobs),))
    return Item(id=IDS.new("msg_"), status=ItemStatus.COMPLETED, created_at=NOW, content=content)


async def test_a_summary_has_the_priority_of_its_turn() -> None:
    """Compaction for a batch line runs with the batch priority."""
    turns = ScriptedTurns(lambda _: text_script("Many times a"))
    compaction = Compactor(turns, ScriptedModels(), CIPHER, IDS, lambda: NOW, 100)
    response = Response(
        id=IDS.new("resp_"),
        state=ResponseState.QUEUED,
        created_at=NOW,
        settings=ResponseSettings(store=False, compact_threshold=1000),
        model="m",
        options=NO_OPTIONS,
        seed=1,
    )
    recorder = ResponseRecorder("p", response, (), NullSink(AsyncMock()), CIPHER)
    items = [make_message_item(LONG_TEXT), question := make_message_item("b")]
    messages, priority = turn_messages("", items), JobPriority.BATCH
    request = TurnRequest(project="p", model="m", messages=messages, seed=1, priority=priority)
    kept = await compaction.apply(recorder, request, items, {question.id})

    assert kept[1:] == [question]
    assert [turn.priority for turn in turns.requests] == [JobPriority.BATCH]


def test_a_sealed_summary_omits_the_log_probabilities_of_kept_items() -> None:
    """Their raw token bytes need not be valid UTF-8."""
    kept = make_message_item("é", TokenLogprob(token="\ufffd", logprob=-1.0, raw=b"\xc3"))
    sealed = CIPHER.seal_summary("p", Summary(text="s", replaces_all=True, kept=(kept,)))

    opened = CIPHER.open_summary("p", sealed)
    assert opened is not None
    assert opened.kept[0].content == make_message_item("é").content
