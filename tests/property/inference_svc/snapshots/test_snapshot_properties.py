"""Snapshots at any moment of a busy engine, and files with arbitrary damage."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.snapshots.file_format import MAX_METADATA_BYTES
from svc_kit.errors import SnapshotCorrupt, SnapshotIncompatible
from tests.support.examples import examples
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request
from tests.support.snapshots import (
    make_snapshot,
    make_snapshot_file,
    read,
    saved_output,
    write_and_read,
)

TOKENS = [100 + (i * i) % 7 for i in range(90)]
NEVER = 10**6

_sequences = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, len(TOKENS)).map(lambda length: TOKENS[:length]),
        "max_tokens": st.integers(1, 9),
        "priority": st.sampled_from([1, 2, 3]),
        "keep": st.booleans(),
        "seed": st.integers(0, 3),
        "at": st.integers(0, 10),
    }
)


def _bench(slots: int, *, can_trim: bool, stream_s: float) -> EngineBench:
    limits = NativeLimits(32, slots, slots, 128, VOCABULARY_SIZE)
    backend = FakeBackend(limits, end_after=NEVER, can_trim=can_trim)
    costs = CopyCosts(stream_s, 0.0, 1.0)
    return EngineBench(backend, chunk_cap=24, copy_costs=costs, saved_bytes=10**6)


def _submit(bench: EngineBench, i: int, plan: dict[str, Any], resumed: "array[int]") -> None:
    fields = {name: plan[name] for name in ("max_tokens", "priority", "keep", "seed")}
    bench.submit(
        make_request(
            i, plan["prompt"], request_id=f"r{i}", resumed=resumed, ignore_eos=True, **fields
        )
    )


def _run_steps(bench: EngineBench, plans: list[dict[str, Any]], steps: range) -> None:
    for step in steps:
        for i, plan in enumerate(plans):
            if plan["at"] == step:
                _submit(bench, i, plan, array("i"))
        bench.call()


@settings(max_examples=examples(40), deadline=None)
@given(
    plans=st.lists(_sequences, min_size=1, max_size=6),
    stop_at=st.integers(1, 25),
    slots=st.integers(1, 4),
    other_slots=st.integers(1, 4),
    can_trim=st.booleans(),
    stream_s=st.sampled_from([0.0, 1e9]),
)
def test_every_sequence_continues_in_another_engine(
    plans: list[dict[str, Any]],
    stop_at: int,
    slots: int,
    other_slots: int,
    can_trim: bool,
    stream_s: float,
) -> None:
    """All sequences are saved at the same moment; each continues with the tokens that it generates
    in the first engine."""
    bench = _bench(slots, can_trim=can_trim, stream_s=stream_s)
    _run_steps(bench, plans, range(stop_at))
    saved: dict[int, SavedPrefix] = {}
    for i in range(len(plans)):
        prefix = bench.engine.snapshot(f"r{i}", 0)
        if prefix is not None:
            saved[i] = write_and_read(prefix, f"snap_{i:024}")
    bench.engine.check_integrity()

    other = _bench(other_slots, can_trim=can_trim, stream_s=stream_s)
    for i, prefix in saved.items():
        assert other.engine.prefix_cache.put(prefix)
        _submit(other, i, plans[i], array("i", saved_output(prefix)))
    other.run()
    _run_steps(bench, plans, range(stop_at, 12))
    bench.run()

    for i, prefix in saved.items():
        assert [*saved_output(prefix), *other.tokens(i)] == bench.tokens(i)


_SNAPSHOT = make_snapshot(recipe="x" * 300, hidden=(1.0, 2.0))
_FILE = make_snapshot_file(_SNAPSHOT, bytes(range(40)))
_damages = st.lists(
    st.tuples(st.integers(0, len(_FILE) - 1), st.binary(min_size=1, max_size=9)),
    min_size=1,
    max_size=6,
)


@given(damages=_damages, cut=st.none() | st.integers(0, len(_FILE)), added=st.binary(max_size=20))
def test_any_damage_is_detected(
    damages: list[tuple[int, bytes]], cut: int | None, added: bytes
) -> None:
    """Changed, missing and added bytes raise a typed error."""
    data = bytearray(_FILE)
    for offset, change in damages:
        data[offset : offset + len(change)] = change
    damaged = bytes(data[:cut] + added)
    if damaged == _FILE:
        assert read(damaged) == (_SNAPSHOT, bytes(range(40)))
        return
    with pytest.raises((SnapshotCorrupt, SnapshotIncompatible)):
        read(damaged)


@given(head=st.binary(max_size=60), sizes=st.tuples(st.integers(0, 2**32 - 1), st.integers(0)))
def test_forged_sizes_allocate_no_memory(head: bytes, sizes: tuple[int, int]) -> None:
    """No more is read than the file has."""
    claimed = min(sizes[0], MAX_METADATA_BYTES).to_bytes(4, "little")
    data = _FILE[:20] + claimed + (sizes[1] % 2**96).to_bytes(12, "little") + head
    with pytest.raises((SnapshotCorrupt, SnapshotIncompatible)):
        read(data)
