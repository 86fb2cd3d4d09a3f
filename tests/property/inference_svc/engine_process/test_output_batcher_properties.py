"""News on its way to the frontend: nothing is lost, and nothing overtakes within a sequence."""

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
    st.builds(Delta, _sequences, st.text(max_size=2), st.just((0,)), st.just(())),
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
def test_every_sequence_is_told_of_in_order_and_at_once_where_it_must(
    steps: list[list[Event]],
) -> None:
    """Whatever of others waits."""
    outbox = OutputBatcher(FOREVER_S, clock=lambda: 0.0)
    told: list[Event] = []
    for number, events in enumerate(steps):
        outbox.put([*events])
        if any(isinstance(event, URGENT) for event in events):
            (taken,) = outbox.take()
            assert isinstance(taken, list)
            told += taken
            waiting = [event for step in steps[: number + 1] for event in step]
            for event in told:
                waiting.remove(event)
            urgent = {_owner(event) for event in events if isinstance(event, URGENT)}
            assert all(isinstance(event, Delta) for event in waiting)
            assert not urgent & {_owner(event) for event in waiting}
    outbox.put(SnapshotDone(7, 0, None))
    *left, _ = outbox.take()
    told += [event for news in left if isinstance(news, list) for event in news]

    said = [event for step in steps for event in step]
    for owner in (0, 1, 2, 3, None):
        assert [e for e in told if _owner(e) == owner] == [e for e in said if _owner(e) == owner]


def _owner(event: Event) -> int | None:
    return None if isinstance(event, ModelLoad) else event.sequence_id  # type: ignore[union-attr]
