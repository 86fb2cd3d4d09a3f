"""Events of a turn do not depend on how often its worker is replaced."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from corral.control.v1.response_event_pb2 import ResponseEvent
from corral.inference.v1.chat_pb2 import ToolCallDelta
from corral.inference.v1.inference_service_pb2 import ChatDelta
from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.agent.drafts import CUSTOM_TOOL_TARGET, DraftKind, ToolTarget, TurnDraft
from control_svc.event_log.model import encode_events
from control_svc.items.model import ItemStatus
from control_svc.responses.events import TurnProjection, restore_drafts
from tests.support.examples import examples

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TARGETS = {"custom": CUSTOM_TOOL_TARGET, "search": ToolTarget(DraftKind.HOSTED, "fs_")}
NAMES = st.sampled_from(["weather", "clock", "custom", "search"])
WORDS = st.sampled_from(["a", " b", "{}", '"', "ä"])


@st.composite
def turns(draw: st.DrawFn) -> list[ChatDelta]:
    """Generate a turn with one token per delta: reasoning, text and calls in any order."""
    deltas, num_calls = [], 0
    for kind in draw(
        st.lists(st.sampled_from(["reasoning", "text", "call", "nothing"]), max_size=6)
    ):
        words = draw(st.lists(WORDS, min_size=1, max_size=3))
        if kind == "reasoning":
            deltas += [ChatDelta(reasoning=word) for word in words]
        elif kind == "text":
            deltas += [ChatDelta(content=word) for word in words]
        elif kind == "call":
            pieces = [ToolCallDelta(index=num_calls, arguments_json=word) for word in words]
            pieces[0].id, pieces[0].name = f"call_{num_calls}", draw(NAMES)
            deltas += [ChatDelta(tool_calls=[piece]) for piece in pieces]
            num_calls += 1
        else:
            deltas.append(ChatDelta())
    return deltas


@dataclass
class Log:
    """The committed events of a turn, one entry per recorded delta."""

    entries: list[list[bytes]] = field(default_factory=list)

    @property
    def events(self) -> list[bytes]:
        return [data for entry in self.entries for data in entry]


def run_worker(deltas: Sequence[ChatDelta], log: Log, dies_after: int | None = None) -> list[bytes]:
    """Resume the turn after the log; return the events of its end, or none if the worker dies."""
    restored = restore_drafts(log.events)
    projection, ids = (
        TurnProjection(0, lambda item: item, restored),
        iter(range(len(restored), 100)),
    )
    draft = TurnDraft(restored, TARGETS, lambda prefix: f"{prefix}{next(ids)}", lambda: NOW)
    held_events: list[ResponseEvent] = []
    for number, delta in enumerate(deltas[len(log.entries) :]):
        if number == dies_after:
            return []
        events = projection.record(list(draft.apply(delta)))
        if projection.is_held:
            held_events += events
        else:
            log.entries.append(encode_events(events))
    projection.record(list(draft.close()))
    held_events += projection.end([each.item(ItemStatus.COMPLETED) for each in draft.drafts])
    return encode_events(held_events)


def run_turn(deltas: Sequence[ChatDelta], *deaths: int) -> list[bytes]:
    """Return all events of a turn whose workers die after these numbers of deltas."""
    log = Log()
    for dies_after in deaths:
        run_worker(deltas, log, dies_after)
    end = run_worker(deltas, log)
    return log.events + end


@settings(max_examples=examples(200))
@given(deltas=turns(), deaths=st.lists(st.integers(0, 8), max_size=3))
def test_replaced_workers_write_the_events_of_one_worker(
    deltas: list[ChatDelta], deaths: list[int]
) -> None:
    """No event is missing, repeated or different."""
    assert run_turn(deltas, *deaths) == run_turn(deltas)


@settings(max_examples=examples(100))
@given(deltas=turns())
def test_each_item_is_added_and_done_once_in_order(deltas: list[ChatDelta]) -> None:
    """With consecutive indexes and the same id in both events, as the SDK requires."""
    events = [ResponseEvent.FromString(data) for data in run_turn(deltas)]
    added = [each.output_item_added for each in events if each.HasField("output_item_added")]
    done = [each.output_item_done for each in events if each.HasField("output_item_done")]

    assert [event.output_index for event in added] == list(range(len(added)))
    assert [event.item.id for event in done] == [event.item.id for event in added]
