"""Snapshots on llama.cpp: written to a file and restored in a context of another size."""

import random
from array import array
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import CacheSource, Event, Failed, Started
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.state_convert import cell_layout
from inference_svc.models.placement import Attention, FlashAttention
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.snapshots.cell_blocks import (
    join_blocks,
    name_blocks,
    split_blocks,
    without_blocks,
)
from tests.support.llama_engines import (
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
    select_events,
)
from tests.support.sequences import make_request
from tests.support.snapshots import (
    SNAPSHOT_ID,
    copy_block,
    save_prefix,
    saved_output,
    write_and_read,
)

PROMPT = random.Random(1).choices(range(3, 259), k=90)
CUT = 9
WHOLE = 24
SIZES = {"same slots": (3, 3), "more slots": (2, 5), "one slot": (3, 1)}


class Saved(NamedTuple):
    """A snapshot, and the tokens of the whole sequence."""

    prefix: SavedPrefix
    tokens: list[int]


def _open(path: Path, slots: int) -> AbstractContextManager[LlamaBackend]:
    sizes: dict[str, Any] = {"context_tokens": 256, "batch_tokens": 256, "ubatch_tokens": 128}
    return open_backend(path, slots=slots, **sizes)


def _engine(backend: LlamaBackend) -> Engine:
    return make_engine(backend, chunk_cap=256, saved_bytes=64 << 20)


def _request(i: int = 0, **changes: Any) -> SequenceRequest:
    fields = {"max_tokens": WHOLE, "ignore_eos": True, "request_id": f"r{i}", **changes}
    return make_request(i, PROMPT, **fields)


def _run(engine: Engine, until: int) -> list[Event]:
    """Step until sequence 0 has generated this number of tokens."""
    events: list[Event] = []
    while len(output_tokens(events)) < until:
        events += run_engine(engine, steps=1)
    return events


def _save_and_continue(backend: LlamaBackend, until: int, **changes: Any) -> Saved:
    """Save a sequence after `until` tokens, then run it to its end."""
    engine = _engine(backend)
    engine.submit(_request(**changes))
    events = _run(engine, until)
    prefix = write_and_read(save_prefix(engine, "r0"))
    return Saved(prefix, output_tokens(events + run_engine(engine)))


def _restore_and_run(backend: LlamaBackend, prefix: SavedPrefix, **changes: Any) -> list[Event]:
    engine = _engine(backend)
    assert engine.prefix_cache.put(prefix)
    return run_engine(engine, _request(resumed=array("i", saved_output(prefix)), **changes))


@pytest.mark.parametrize("slots", SIZES.values(), ids=SIZES)
def test_a_sequence_continues_in_another_context(model_path: Path, slots: tuple[int, int]) -> None:
    """With any number of slots it generates the same tokens, without computing its prompt."""
    changes: dict[str, Any] = {
        "sampling": Sampling(temperature=1.5, repetition_penalty=1.2),
        "reuse": False,
    }
    with _open(model_path, slots[0]) as backend:
        whole = output_tokens(run_engine(_engine(backend), _request(**changes)))
        engine = _engine(backend)
        if slots[0] > 1:  # use another slot than the first
            run_engine(engine, make_request(1, [5, 6, 7], max_tokens=200, ignore_eos=True), steps=1)
            engine.pause(1, paused=True)
        engine.submit(_request(**changes))
        _run(engine, until=CUT)
        prefix = write_and_read(save_prefix(engine, "r0"))
    with _open(model_path, slots[1]) as backend:
        events = _restore_and_run(backend, prefix, **{**changes, "reuse": True})

    (started,) = select_events(events, Started)
    assert (started.cached_tokens, started.source) == (len(PROMPT), CacheSource.DISK)
    assert len(saved_output(prefix)) == CUT
    assert [*saved_output(prefix), *output_tokens(events)] == whole


@pytest.mark.parametrize("flash_attention", [FlashAttention.ON, FlashAttention.OFF])
def test_a_longer_state_has_the_blocks_of_the_shorter_one(
    model_path: Path, flash_attention: FlashAttention
) -> None:
    """With values in rows and in columns, beside a sequence in another slot. States of a window or
    a recurrent state only are written as a whole."""
    tokens = random.Random(2).choices(range(3, 259), k=900)
    states = []
    sizes: dict[str, Any] = {"slots": 2, "context_tokens": 1024, "batch_tokens": 1024}
    attention = Attention(flash_attention=flash_attention)
    with open_backend(model_path, attention=attention, **sizes) as backend:
        engine = make_engine(backend, chunk_cap=1024, saved_bytes=0)
        run_engine(engine, make_request(1, [5, 6, 7], max_tokens=200, ignore_eos=True), steps=1)
        engine.pause(1, paused=True)
        for number, length in ((2, 600), (3, 900)):
            events = run_engine(engine, make_request(number, tokens[:length], max_tokens=1))
            slot = max(range(2), key=backend.slot_length)
            states.append(backend.save(slot))
    layouts = [cell_layout(state) for state in states]

    assert select_events(events, Started)[0].cached_tokens == 600
    if layouts[0] is None or layouts[1] is None:
        assert layouts == [None, None]
        assert model_path.stem in ("window", "recurrent")
        return
    names = []
    for state, layout in zip(states, filter(None, layouts), strict=True):
        blocks = [*split_blocks(state, layout)]
        assert join_blocks(without_blocks(state, layout), blocks, copy_block, layout) == state
        names.append(name_blocks(state, layout, b"project", b"secret").names)
    assert [len(each) for each in names] == [2, 3]
    assert names[1][:2] == names[0]


HIDDEN = {
    "mirostat 1": Sampling(mirostat=Mirostat(1, tau=3.0)),
    "mirostat 2": Sampling(mirostat=Mirostat(2, tau=3.0)),
    "adaptive": Sampling(adaptive=Adaptive(0.3)),
    "dry and xtc": Sampling(
        temperature=1.3, dry=Dry(multiplier=2.0), xtc_probability=0.5, xtc_threshold=0.02
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_snapshot_has_the_hidden_state_of_samplers(name: str) -> None:
    """It cannot be derived from the tokens."""
    with _open(BUNDLED_PATH, 2) as backend:
        saved = _save_and_continue(backend, CUT, sampling=HIDDEN[name])
        events = _restore_and_run(
            backend, saved.prefix, sampling=HIDDEN[name], snapshot_id=SNAPSHOT_ID
        )

    assert select_events(events, Failed) == []
    assert [*saved_output(saved.prefix), *output_tokens(events)] == saved.tokens


def test_a_constrained_sequence_continues_inside_its_grammar() -> None:
    """The state of the grammar follows from the grammar and the tokens."""
    changes: dict[str, Any] = {
        "sampling": Sampling(temperature=1.5),
        "constraint": Constraint("start: /[a-z]{3} [a-z]{8}-[0-9]{6}/", "constraint"),
        "max_tokens": 40,
    }
    with _open(BUNDLED_PATH, 2) as backend:
        saved = _save_and_continue(backend, 4, **changes)
        events = _restore_and_run(backend, saved.prefix, **changes)

    resumed = saved_output(saved.prefix)
    assert 4 <= len(resumed) < len(saved.tokens)
    assert [*resumed, *output_tokens(events)] == saved.tokens
