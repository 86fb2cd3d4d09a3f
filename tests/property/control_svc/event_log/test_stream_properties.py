"""Event streams: followers read the same bytes despite failing writers; chunks and packing."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from control_svc.db.tables import pack_ints, pack_texts, unpack_ints, unpack_texts
from control_svc.event_log.model import MAX_CHUNK_EVENTS, NOTHING_HELD, Chunk, Held, in_chunks
from tests.support.job_machine import OpenDatabase, check_histories
from tests.support.stream_machine import StreamMachine


def test_all_followers_read_the_same_bytes(on_sqlite: OpenDatabase) -> None:
    """With writers that stall, die and resume late; `StreamMachine` checks the invariants."""

    check_histories(StreamMachine, on_sqlite, max_examples=6)


@given(st.lists(st.binary(max_size=50)))
def test_packed_texts_are_unpacked(texts: list[bytes]) -> None:
    """The round trip preserves each, empty ones included."""
    assert unpack_texts(pack_texts(texts), len(texts)) == texts


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_packed_integers_are_unpacked(values: list[int]) -> None:
    """The round trip preserves each 32-bit integer."""
    assert unpack_ints(pack_ints(values)) == values


@given(st.integers(0, 3 * MAX_CHUNK_EVENTS), st.lists(st.integers(0, 9), max_size=3))
def test_chunks_are_bounded_and_complete(count: int, token_ids: list[int]) -> None:
    """Events are in order, tokens in the first chunk; there is at least one chunk."""
    events = [b"%d" % index for index in range(count)]
    chunks = in_chunks(events, 2, token_ids)

    assert chunks
    assert [event for chunk in chunks for event in chunk.events] == events
    assert [token for chunk in chunks for token in chunk.token_ids] == token_ids
    assert all(len(chunk.events) <= MAX_CHUNK_EVENTS for chunk in chunks)
    assert {chunk.turn for chunk in chunks} == {2}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), min_size=1))
def test_what_is_held_back_does_not_depend_on_how_chunks_are_merged(
    tokens: list[tuple[int, int, bool]],
) -> None:
    """Each token may hold back more, and decide about some; a list of all has what is left."""
    expected: list[bytes] = []
    merged: list[Chunk] = []
    for number, (num_more, num_decided, begins) in enumerate(tokens):
        more = [b"%d.%d" % (number, index) for index in range(num_more)]
        expected = [*expected, *more][num_decided:]
        chunk = Chunk((), 1, [number], Held(more, len(expected)))
        if begins or not merged:
            merged += [chunk, Chunk([b"an event"], 1)]
        else:
            merged[-1] = merged[-1].extended(chunk)
    held = reduce(Held.then, (each.held for each in merged if each.token_ids), NOTHING_HELD)

    assert list(held.parts) == expected
