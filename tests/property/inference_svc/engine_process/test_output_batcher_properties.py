"""Batching loses no event and preserves the order within a sequence."""

from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.events import (
    Cancelled,
    Delta,
    Event,
    Finished,
    FinishReason,
    ModelLoad,
    Started,
    Timings,
)
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.output_batcher import OutputBatcher

FOREVER_S = 3600.0
URGENT = (Started, Finished, Cancelled)

_sequences = st.integers(0, 3)
_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Started, _sequences, st.just(0), st.just(0)),
    st.builds(Delta, _sequences, st.tuples(st.text(max_size=2)), st.just((0,)), st.just(())),
    st.builds(
        Finished,
        _sequences,
        st.just(FinishReason.STOP),
        st.none(),
        st.none(),
        st.integers(1, 99),
        st.just(Timings(0.0, 0.0, 0.0)),
    ),
    st.builds(Cancelled, _sequences, st.just("decode"), st.integers(0, 9), st.integers(0, 9)),
    st.builds(ModelLoad, st.just("m"), st.integers(0, 9)),
)


@given(st.lists(st.lists(_events, min_size=1, max_size=6), max_size=12))
def test_events_are_sent_in_order_and_urgent_ones_at_once(steps: list[list[Event]]) -> None:
    """Only tokens of other sequences are delayed."""
    outbox = OutputBatcher(FOREVER_S, clock=lambda: 0.0)
    sent: list[Event] = []
    for number, events in enumerate(steps):
        outbox.put([*events])
        if any(isinstance(event, URGENT) for event in events):
            (batch,) = outbox.get()
            assert isinstance(batch, list)
            sent += batch
            delayed = [event for step in steps[: number + 1] for event in step]
            for event in sent:
                delayed.remove(event)
            urgent = {_sequence(event) for event in events if isinstance(event, URGENT)}
            assert all(isinstance(event, Delta) for event in delayed)
            assert not urgent & {_sequence(event) for event in delayed}
    outbox.put(SnapshotDone(7, 0, None))
    *outputs, _ = outbox.get()
    sent += [event for output in outputs if isinstance(output, list) for event in output]

    put = [event for step in steps for event in step]
    for sequence in (0, 1, 2, 3, None):
        assert [e for e in sent if _sequence(e) == sequence] == [
            e for e in put if _sequence(e) == sequence
        ]


def _sequence(event: Event) -> int | None:
    return None if isinstance(event, ModelLoad) else event.sequence_id  # type: ignore[union-attr]
