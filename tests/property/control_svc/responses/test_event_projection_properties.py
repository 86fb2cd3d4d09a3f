"""What is told of a turn, over all turns: the same, however often its worker is replaced."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.agent.drafts import CUSTOM_TOOL_TARGET, DraftKind, ToolTarget, TurnDraft
from control_svc.inference.turns import Delta, ToolCallDelta
from control_svc.items.model import ItemStatus
from control_svc.responses.event_codec import RESPONSE_EVENTS
from control_svc.responses.events import (
    EventType,
    ItemEvent,
    ResponseEvent,
    TurnProjection,
    rebuild_drafts,
)
from tests.support.examples import examples

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALLEES = {"custom": CUSTOM_TOOL_TARGET, "search": ToolTarget(DraftKind.HOSTED, "fs_")}
NAMES = st.sampled_from(["weather", "clock", "custom", "search"])
WORDS = st.sampled_from(["a", " b", "{}", '"', "ä"])


@st.composite
def turns(draw: st.DrawFn) -> list[Delta]:
    """A turn, a token for each delta: thoughts, texts and calls in any order, parallel ones too."""
    deltas, num_calls = [], 0
    for kind in draw(st.lists(st.sampled_from(["thought", "text", "call", "nothing"]), max_size=6)):
        words = draw(st.lists(WORDS, min_size=1, max_size=3))
        if kind == "thought":
            deltas += [Delta(reasoning=word) for word in words]
        elif kind == "text":
            deltas += [Delta(content=word) for word in words]
        elif kind == "call":
            first = ToolCallDelta(num_calls, f"call_{num_calls}", draw(NAMES), words[0])
            rest = [ToolCallDelta(num_calls, "", "", word) for word in words[1:]]
            deltas += [Delta(calls=(piece,)) for piece in (first, *rest)]
            num_calls += 1
        else:
            deltas.append(Delta())
    return deltas


@dataclass
class Log:
    """What is committed of a turn: an entry for each delta that was told."""

    entries: list[list[bytes]] = field(default_factory=list)

    @property
    def events(self) -> list[ResponseEvent]:
        """All events, as they are read."""
        return [RESPONSE_EVENTS.decode(data) for entry in self.entries for data in entry]


def work(deltas: Sequence[Delta], log: Log, dies_after: int | None = None) -> list[bytes]:
    """An attempt, which goes on behind the log; what the end of the turn adds to it."""
    told = rebuild_drafts(log.events, first_index=0)
    telling, ids = TurnProjection(0, lambda item: item, told), iter(range(len(told), 100))
    draft = TurnDraft(told, CALLEES, lambda prefix: f"{prefix}{next(ids)}", lambda: NOW)
    held: list[ResponseEvent] = []
    for number, delta in enumerate(deltas[len(log.entries) :]):
        if number == dies_after:
            return []
        events = telling.record(list(draft.apply(delta)))
        if telling.is_held:
            held += events
        else:
            log.entries.append([RESPONSE_EVENTS.encode(event) for event in events])
    telling.record(list(draft.close()))
    held += telling.end([each.item(ItemStatus.COMPLETED) for each in draft.drafts])
    return [RESPONSE_EVENTS.encode(event) for event in held]


def whole(deltas: Sequence[Delta], *deaths: int) -> list[bytes]:
    """Everything that readers hear, with workers that die after so many deltas each."""
    log = Log()
    for dies_after in deaths:
        work(deltas, log, dies_after)
    end = work(deltas, log)
    return [data for entry in log.entries for data in entry] + end


@settings(max_examples=examples(200))
@given(deltas=turns(), deaths=st.lists(st.integers(0, 8), max_size=3))
def test_replaced_workers_tell_what_one_would(deltas: list[Delta], deaths: list[int]) -> None:
    """No event is missing, repeated or different."""
    assert whole(deltas, *deaths) == whole(deltas)


@settings(max_examples=examples(100))
@given(deltas=turns())
def test_each_item_is_added_and_done_once_in_order(deltas: list[Delta]) -> None:
    """As the SDK wants it: an index for each item, its deltas between, the same id at both ends."""
    events = [RESPONSE_EVENTS.decode(data) for data in whole(deltas)]
    items = [event for event in events if isinstance(event, ItemEvent)]
    added = [event for event in items if event.type is EventType.ITEM_ADDED]
    done = [event for event in items if event.type is EventType.ITEM_DONE]

    assert [event.output_index for event in added] == list(range(len(added)))
    assert [event.item.id for event in done] == [event.item.id for event in added]
