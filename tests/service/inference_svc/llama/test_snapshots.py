"""Snapshots on llama.cpp: through a file, into a context of another size, token for token."""

import random
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import CacheSource, Delta, Event, Failed, Started
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.model_kinds import write_model_of_kind
from tests.support.sequences import a_request
from tests.support.snapshots import AN_ID, carried_over, output_of, taken

PROMPT = random.Random(1).choices(range(3, 259), k=90)
CUT = 9
WHOLE = 24
SIZES = {"same slots": (3, 3), "more slots": (2, 5), "one slot": (3, 1)}


@contextmanager
def _open(path: Path, slots: int) -> Iterator[LlamaBackend]:
    library.start()
    settings = BackendSettings(
        path,
        slots=slots,
        context_tokens=256,
        batch_tokens=256,
        ubatch_tokens=128,
        threads=1,
        sampling_threads=1,
    )
    backend = LlamaBackend(settings)
    try:
        yield backend
    finally:
        backend.close()


@pytest.fixture(scope="module", params=["demo", "window", "recurrent", "hybrid"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, and a random one of each kind of memory."""
    if request.param == "demo":
        return BUNDLED_PATH
    path: Path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    return write_model_of_kind(request.param, path)


def _engine(backend: LlamaBackend) -> Engine:
    for slot in range(backend.limits.slots):
        backend.trim(slot, 0)
    return Engine(
        "m",
        backend,
        layout=BatchLayout({}, backend.limits.slots),
        chunk_cap=256,
        clock=time.monotonic,
        saved_bytes=64 << 20,
    )


def _request(i: int = 0, **changes: Any) -> SequenceRequest:
    fields = {"max_tokens": WHOLE, "ignore_eos": True, "request_id": f"r{i}", **changes}
    return a_request(i, PROMPT, **fields)


def _run(engine: Engine, until: int = 10**6) -> list[Event]:
    """Step until nothing is left, or sequence 0 has said so many tokens."""
    events: list[Event] = []
    while engine.has_work and len(_tokens(events)) < until:
        events += engine.step()
        engine.check_integrity()
    return events


def _tokens(events: list[Event], sequence_id: int = 0) -> list[int]:
    deltas = [event for event in events if isinstance(event, Delta)]
    return [t for delta in deltas if delta.sequence_id == sequence_id for t in delta.tokens]


@pytest.mark.parametrize("slots", SIZES.values(), ids=SIZES)
def test_a_sequence_goes_on_in_another_context(model: Path, slots: tuple[int, int]) -> None:
    """With another number of slots too: token for token, without computing its prompt."""
    asked: dict[str, Any] = {
        "sampling": Sampling(temperature=1.5, repetition_penalty=1.2),
        "reuse": False,
    }
    with _open(model, slots[0]) as backend:
        alone = _engine(backend)
        alone.submit(_request(**asked))
        whole = _tokens(_run(alone))
        engine = _engine(backend)
        if slots[0] > 1:  # into another slot than the first
            engine.submit(a_request(1, [5, 6, 7], max_tokens=200, ignore_eos=True))
            engine.step()
            engine.pause(1, paused=True)
        engine.submit(_request(**asked))
        _run(engine, until=CUT)
        prefix = carried_over(taken(engine, "r0"))
    with _open(model, slots[1]) as backend:
        engine = _engine(backend)
        assert engine.restore(prefix)
        resumed = array("i", output_of(prefix))
        engine.submit(_request(**{**asked, "reuse": True}, resumed=resumed))
        events = _run(engine)

    (started,) = [event for event in events if isinstance(event, Started)]
    assert (started.cached_tokens, started.source) == (len(PROMPT), CacheSource.DISK)
    assert len(resumed) == CUT
    assert [*resumed, *_tokens(events)] == whole


HIDDEN = {
    "mirostat 1": Sampling(mirostat=Mirostat(1, tau=3.0)),
    "mirostat 2": Sampling(mirostat=Mirostat(2, tau=3.0)),
    "adaptive": Sampling(adaptive=Adaptive(0.3)),
    "dry and xtc": Sampling(
        temperature=1.3, dry=Dry(multiplier=2.0), xtc_probability=0.5, xtc_threshold=0.02
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_sampler_hides_goes_along(name: str) -> None:
    """Tokens alone would not bring it back; the snapshot does."""
    with _open(BUNDLED_PATH, 2) as backend:
        engine = _engine(backend)
        engine.submit(_request(sampling=HIDDEN[name]))
        events = _run(engine, until=CUT)
        prefix = carried_over(taken(engine, "r0"))
        whole = _tokens(events + _run(engine))
        resumed = array("i", output_of(prefix))
        other = _engine(backend)
        other.restore(prefix)
        other.submit(_request(sampling=HIDDEN[name], resumed=resumed, snapshot_id=AN_ID))
        events = _run(other)

    assert [event for event in events if isinstance(event, Failed)] == []
    assert [*resumed, *_tokens(events)] == whole


def test_a_constrained_sequence_goes_on_inside_its_grammar() -> None:
    """The grammar's state is the grammar and the tokens."""
    constraint = Constraint("start: /[a-z]{3} [a-z]{8}-[0-9]{6}/", "constraint")
    asked: dict[str, Any] = {
        "sampling": Sampling(temperature=1.5),
        "constraint": constraint,
        "max_tokens": 40,
    }
    with _open(BUNDLED_PATH, 2) as backend:
        engine = _engine(backend)
        engine.submit(_request(**asked))
        events = _run(engine, until=4)
        prefix = carried_over(taken(engine, "r0"))
        whole = _tokens(events + _run(engine))
        other = _engine(backend)
        other.restore(prefix)
        resumed = array("i", output_of(prefix))
        other.submit(_request(**asked, resumed=resumed))
        events = _run(other)

    assert 4 <= len(resumed) < len(whole)
    assert [*resumed, *_tokens(events)] == whole
