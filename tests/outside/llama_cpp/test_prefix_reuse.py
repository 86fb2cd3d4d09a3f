"""Random models of llama.cpp's architectures: a cached prefix does not change log probabilities.

Each is compared with the same request without a cache. Keys and values are 32-bit floats here, so
that nothing but the order of sums differs.
"""

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import llama_cpp
import numpy as np
import pytest

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Event, Preempted, Resumed, Started
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.slots import common_prefix
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.sampling.candidates import Logits
from inference_svc.models.metadata import ONE_SEQUENCE
from inference_svc.models.placement import Attention, FlashAttention
from model_files.ggml_types import KvType
from tests.outside.llama_cpp.architectures import COMMON, OTHERS, write_architecture
from tests.support.llama_engines import (
    deltas,
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
    select_events,
)
from tests.support.sequences import make_request
from tests.support.snapshots import save_prefix, saved_output, write_and_read

EXACT: Final = 0.005
"""Difference of log probabilities; without the window's cells it is 0.01 to 10."""
SLOTS: Final = 3
WINDOW: Final = 80
WITHIN, BEYOND = 70, 130
"""Tokens that fit a window, and more."""
COUNT: Final = 2
VOCABULARY: Final = 259
FIRST, OTHER, LAST = (
    random.Random(seed).choices(range(3, VOCABULARY), k=count)
    for seed, count in ((1, BEYOND), (2, 90), (3, 10))
)
ATTENTION = Attention(KvType.F32, KvType.F32, flash_attention=FlashAttention.OFF)
SIZES: Any = {"context_tokens": 256, "batch_tokens": 256, "ubatch_tokens": 256}
QUICK: Final = """
deepseek2 falcon-h1 gemma3 lfm2 llama llama4 mamba minimax-m3 plamo3 rwkv7
"""
"""Names with each kind of memory: all attention, windows beside it, recurrent, hybrid, others."""
UNUSED: Final = frozenset({"exaone4"})
"""Names of models whose window is used in other sizes only."""
LOST: Final = frozenset({"deepseek4"})
"""States that cannot be restored yet, so that their tokens are computed again."""
Logprobs = list[dict[int, float]]


class Case(NamedTuple):
    """A request that starts with `kept` of the `tokens` of an earlier one; or with all of those,
    computed output included, but for the last `-kept`."""

    tokens: int
    kept: int

    @property
    def first(self) -> list[int]:
        """The prompt of the earlier request."""
        return FIRST[: self.tokens]

    def computed(self, output: Sequence[int]) -> list[int]:
        """The tokens of the earlier request that are computed."""
        return [*self.first, *output][: len(self.first) + len(output) - 1]

    def prompt(self, output: Sequence[int]) -> list[int]:
        if self.kept > 0:
            return [*self.first[: self.kept], *LAST]
        computed = self.computed(output)
        return [*computed[: len(computed) + self.kept], *LAST]


CASES = [
    Case(WITHIN, 40),
    Case(WITHIN, 0),
    Case(BEYOND, 40),
    Case(BEYOND, 120),
    Case(BEYOND, -1),
    Case(BEYOND, 0),
]


class Reuse(NamedTuple):
    """The later request. Its cache has the `computed` tokens, of which the last `most` can be cut
    off if a sliding window has moved; any number if it is None."""

    prompt: list[int]
    events: list[Event]
    computed: list[int]
    most: int | None = None

    @property
    def shared(self) -> int:
        """The tokens with which both begin; the last one of a prompt is always computed."""
        return common_prefix(self.computed, self.prompt, limit=len(self.prompt) - 1)


class Model:
    """A model in Corral's backend."""

    def __init__(self, backend: LlamaBackend, name: str) -> None:
        self.backend = backend
        self.is_alone, self.loses_states = name in ONE_SEQUENCE, name in LOST
        native = backend.model
        self.is_recurrent = bool(
            llama_cpp.llama_model_is_recurrent(native) or llama_cpp.llama_model_is_hybrid(native)
        )
        has_window = not self.is_recurrent and name not in UNUSED
        self.window = int(llama_cpp.llama_model_n_swa(native)) if has_window else 0
        self._alone: dict[tuple[int, ...], Logprobs] = {}

    def engine(self, costs: CopyCosts | None = None) -> Engine:
        """An engine on empty slots."""
        costs = costs or CopyCosts()
        return make_engine(self.backend, chunk_cap=256, saved_bytes=64 << 20, copy_costs=costs)

    def alone(self, prompt: list[int], count: int = COUNT) -> Logprobs:
        """The log probabilities of a request without a cache."""
        key = (*prompt, count)
        if key not in self._alone:
            request = scored(0, prompt, reuse=False, max_tokens=count)
            self._alone[key] = logprobs(run_engine(self.engine(), request), 0)
        return self._alone[key]

    def num_exact(self, reuse: Reuse) -> int:
        """How many tokens of the cache can be reused exactly."""
        shared, computed = reuse.shared, len(reuse.computed)
        if self.is_recurrent:
            is_exact = shared == computed
        else:
            has_moved = reuse.most is not None and 0 < self.window < computed
            is_exact = not has_moved or shared >= computed - (reuse.most or 0)
        return shared if is_exact else 0


def model_params(is_quick: Callable[[str, int | None], bool]) -> list[Any]:
    """An architecture and its shared cells, for each; the common ones with slots in either layout.
    Those that are not quick are slow."""
    return [
        pytest.param(
            (name, cells),
            id=f"{name}-{layout}",
            marks=() if is_quick(name, cells) else pytest.mark.slow,
        )
        for name in [*COMMON.split(), *OTHERS.split()]
        for layout, cells in (("streams", None), ("unified", SLOTS * 256))
        if cells is None or name in COMMON.split()
    ]


@contextmanager
def open_model(folder: Path, name: str, cells: int | None, **sizes: Any) -> Iterator[Model]:
    path = folder / "model.gguf"
    write_architecture(name, path, **{"attention.sliding_window": WINDOW})
    slots = 1 if name in ONE_SEQUENCE else SLOTS
    sizes = {**SIZES, "slots": slots, "shared_cells": cells, **sizes}
    with open_backend(path, attention=ATTENTION, **sizes) as backend:
        yield Model(backend, name)


@pytest.fixture(
    scope="module",
    params=model_params(
        lambda name, cells: name in QUICK.split() and (cells is None or name == "gemma3")
    ),
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    """A model of each architecture."""
    with open_model(tmp_path_factory.mktemp("models"), *request.param) as opened:
        yield opened


def _request(i: int, prompt: list[int], **changes: Any) -> SequenceRequest:
    options = {"max_tokens": COUNT, "ignore_eos": True, "max_draft": 0}
    return make_request(i, prompt, **{**options, **changes})


def scored(i: int, prompt: list[int], **changes: Any) -> SequenceRequest:
    """A request for the log probabilities of all tokens."""
    return _request(i, prompt, top_logprobs=VOCABULARY, **changes)


def logprobs(events: list[Event], sequence_id: int) -> Logprobs:
    return [
        {each.token: each.logprob for each in token.top}
        for delta in deltas(events, sequence_id)
        for token in delta.logprobs
    ]


def difference(ours: Logprobs, expected: Logprobs) -> float:
    """The largest difference, infinite unless all tokens are there."""
    if [row.keys() for row in ours] != [row.keys() for row in expected]:
        return float("inf")
    pairs = zip(ours, expected, strict=True)
    return max(abs(row[token] - other[token]) for row, other in pairs for token in row)


def started(events: list[Event], sequence_id: int) -> Started:
    (event,) = [e for e in select_events(events, Started) if e.sequence_id == sequence_id]
    return event


def _from_slot(model: Model, case: Case) -> Reuse:
    """The cells of a sequence that has ended stay in its slot."""
    engine = model.engine()
    output = output_tokens(run_engine(engine, _request(0, case.first)))
    prompt = case.prompt(output)
    return Reuse(prompt, run_engine(engine, scored(9, prompt)), case.computed(output))


def _from_running(model: Model, case: Case, costs: CopyCosts | None = None) -> Reuse:
    """The cells of a running sequence are copied as a stream, or shared in the unified layout."""
    engine = model.engine(costs)
    output = output_tokens(run_engine(engine, _request(0, case.first, max_tokens=9), steps=3))
    prompt = case.prompt(output)
    events = run_engine(engine, scored(9, prompt))
    return Reuse(prompt, events, case.computed(output))


def _from_running_by_state(model: Model, case: Case) -> Reuse:
    """The state of a running sequence is saved and restored where that is cheaper and exact."""
    return _from_running(model, case, CopyCosts(stream_s=1.0))


def _saved(engine: Engine, case: Case, output: list[int]) -> Reuse:
    """A request that finds a saved state, which has the window of its last token."""
    prompt = case.prompt(output)
    return Reuse(prompt, run_engine(engine, scored(9, prompt)), case.computed(output), most=1)


def _from_memory(model: Model, case: Case) -> Reuse:
    """Other sequences have used all slots, so that the state was saved in memory."""
    engine = model.engine()
    output = output_tokens(run_engine(engine, _request(0, case.first)))
    for i in range(1, model.backend.limits.slots + 1):
        run_engine(engine, *(_request(10 * i + j, [30 + 9 * i + j, *OTHER]) for j in range(i)))
    return _saved(engine, case, output)


def _from_file(model: Model, case: Case) -> Reuse:
    """The state was written to a file, and is restored in an engine of another process."""
    engine = model.engine()
    events = run_engine(engine, _request(0, case.first, request_id="r0", keep=True))
    prefix = write_and_read(save_prefix(engine, "r0"))
    engine = model.engine()
    engine.prefix_cache.put(prefix)
    return _saved(engine, case, output_tokens(events))


def _from_preempted(model: Model, case: Case) -> Reuse:
    """A sequence of higher priority preempts the first one, whose slot it takes."""
    engine = model.engine()
    others = [
        _request(10 + i, [40 + i, *OTHER], priority=3, max_tokens=9)
        for i in range(model.backend.limits.slots - 1)
    ]
    events = run_engine(engine, scored(0, case.first, priority=1, max_tokens=9), *others, steps=3)
    output = output_tokens(events)
    prompt = case.prompt(output)
    events += run_engine(engine, scored(9, prompt, priority=3))

    assert select_events(events, Preempted) == [Preempted(0)]
    assert len(select_events(events, Resumed)) == 1
    assert difference(logprobs(events, 0), model.alone(case.first, 9)) < EXACT
    return Reuse(prompt, events, case.computed(output))


def _from_restored(model: Model, case: Case) -> Reuse:
    """The slot was itself restored from a file, and has only what that had."""
    engine = model.engine()
    events = run_engine(engine, _request(0, case.first, request_id="r0", keep=True))
    prefix = write_and_read(save_prefix(engine, "r0"))
    engine, output = model.engine(), output_tokens(events)
    engine.prefix_cache.put(prefix)
    run_engine(engine, _request(1, [*case.first, *output, 5, 6]))
    return _saved(engine, case, output)


def _from_overwritten(model: Model, case: Case) -> Reuse:
    """Another slot takes the cells that the window has left, if slots share cells."""
    engine = model.engine()
    events = run_engine(engine, _request(1, OTHER), _request(0, case.first))
    run_engine(engine, _request(2, [8, *FIRST, *OTHER]))
    output = output_tokens(events, 0)
    prompt = case.prompt(output)
    most = None if model.backend.limits.cells is None else 0
    return Reuse(prompt, run_engine(engine, scored(9, prompt)), case.computed(output), most)


SAVED = [_from_memory, _from_file, _from_restored]
ALONE = [_from_slot, _from_preempted, *SAVED]
TOGETHER = [_from_running, _from_running_by_state, _from_overwritten]
"""Sources of which two sequences run at once."""


@pytest.mark.parametrize("find", [*ALONE, *TOGETHER], ids=lambda find: find.__name__.lstrip("_"))
def test_a_cached_prefix_does_not_change_the_output(
    model: Model, find: Callable[[Model, Case], Reuse]
) -> None:
    """It is reused as far as the memory has everything that the next token depends on, and not at
    all otherwise."""
    if model.is_alone and find not in ALONE:
        pytest.skip("it has one slot")
    for case in CASES:
        reuse = find(model, case)
        ours, expected = logprobs(reuse.events, 9), model.alone(reuse.prompt)
        cached = 0 if find in SAVED and model.loses_states else model.num_exact(reuse)

        assert difference(ours, expected) < EXACT, case
        assert started(reuse.events, 9).cached_tokens == cached, case


@pytest.mark.parametrize("tokens", [WITHIN, BEYOND])
def test_a_snapshot_resumes_exactly(model: Model, tokens: int) -> None:
    """With the log probabilities that the interrupted request would have had."""
    engine, prompt = model.engine(), FIRST[:tokens]
    engine.submit(_request(0, prompt, request_id="r0", max_tokens=12))
    events: list[Event] = []
    while len(output_tokens(events)) < 6:
        events += run_engine(engine, steps=1)
    prefix = write_and_read(save_prefix(engine, "r0"))
    engine, resumed = model.engine(), array("i", saved_output(prefix))
    engine.prefix_cache.put(prefix)
    events = run_engine(engine, scored(0, prompt, max_tokens=12, resumed=resumed))

    assert started(events, 0).cached_tokens == (0 if model.loses_states else tokens)
    expected = model.alone(prompt, 12)[len(resumed) :]
    assert difference(logprobs(events, 0), expected) < EXACT


def test_one_slot_that_was_restored_is_not_cut_before_its_window(tmp_path: Path) -> None:
    """PLaMo 3 with one slot: a prompt, another one, then half of the first one."""
    path = write_architecture("plamo3", tmp_path / "model.gguf")
    with open_backend(path, slots=1, attention=ATTENTION, **SIZES) as backend:
        model, prompt = Model(backend, "plamo3"), [*FIRST[:60], *LAST]
        expected, engine = model.alone(prompt), model.engine()
        for i, first in enumerate((FIRST[:120], OTHER)):
            run_engine(engine, _request(i, first))
        events = run_engine(engine, scored(9, prompt))

    assert started(events, 9).cached_tokens == 0
    assert difference(logprobs(events, 9), expected) < EXACT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_state_is_cut_within_the_last_of_several_chunks(tmp_path: Path) -> None:
    """The windows of Llama 4 are chunks of 8,192 tokens, whatever its file says: a state has those
    since the last multiple."""
    chunk, tokens = 8192, 2 * 8192 + 100
    heads = {"attention.head_count": 1, "attention.head_count_kv": 1, "context_length": 20000}
    path = write_architecture("llama4", tmp_path / "model.gguf", **heads)
    prompt = random.Random(5).choices(range(3, VOCABULARY), k=tokens)
    sizes: Any = {"context_tokens": tokens + 156, "batch_tokens": 512, "ubatch_tokens": 512}
    with open_backend(path, slots=2, attention=ATTENTION, **sizes) as backend:
        for at in range(0, tokens, 512):
            backend.decode(TokenBatch.of([Row(0, at, prompt[at : at + 512], output=False)]))
        backend.restore(1, backend.save(0))
        rows = {
            length: [_next_logits(backend, slot, length) for slot in (0, 1)]
            for length in (tokens, tokens - 50, 2 * chunk + 1)
        }

        assert [backend.can_trim_to(0, length) for length in (2 * chunk, chunk)] == [True, True]
        assert [backend.can_trim_to(1, length) for length in (2 * chunk, chunk)] == [False, False]
        assert backend.min_restored(tokens) == 2 * chunk + 1
    for length, (computed, restored) in rows.items():
        assert np.abs(restored - computed).max() < EXACT, length


def _next_logits(backend: LlamaBackend, slot: int, length: int) -> Logits:
    """The logits of a token after the first `length` ones of a slot, which then has only these."""
    assert backend.trim(slot, length)
    backend.decode(TokenBatch.of([Row(slot, length, (7,), output=True)]))
    logits = backend.logits(0).copy()
    assert backend.trim(slot, length)
    return logits
