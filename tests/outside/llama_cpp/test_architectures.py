"""Random models of llama.cpp's architectures: Corral's tokens are those of llama.cpp alone."""

import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import CacheSource, Event, Started
from inference_svc.engine.request import SequenceRequest
from inference_svc.llama.backend import LlamaBackend
from inference_svc.models.metadata import ONE_SEQUENCE
from tests.outside.llama_cpp.architectures import COMMON, OTHERS, write_architecture
from tests.outside.llama_cpp.results import check_results
from tests.support.llama_engines import (
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
    select_events,
)
from tests.support.plain_llama import PlainLlama
from tests.support.sequences import make_request
from tests.support.snapshots import save_prefix, saved_output, write_and_read

SLOTS = 3
COUNT = 12
END = 2
"""The end token, which is ignored."""
NEARLY = 0.25
"""Difference of log probabilities."""
PROMPT = random.Random(1).choices(range(3, 259), k=90)
SIZES: Any = {"context_tokens": 256, "batch_tokens": 256, "ubatch_tokens": 256}


COMPUTED_AGAIN = frozenset(
    (
        "deepseek32", "deepseek4", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "minimax-m3",
        "qwen4exp",
    )
)  # fmt: skip
"""Their state has two caches that its sizes do not tell apart: it fits the same number of slots, or
none."""


class Model(NamedTuple):
    """A model in Corral's backend, and in a context of llama.cpp alone."""

    backend: LlamaBackend
    plain: PlainLlama
    path: Path


@pytest.fixture(
    scope="module",
    params=[
        *COMMON.split(),
        *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS.split()),
    ],
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    """A model of each architecture, with three slots."""
    folder = tmp_path_factory.mktemp("models")
    path = write_architecture(request.param, folder / f"{request.param}.gguf")
    plain = PlainLlama(path)
    with open_backend(path, slots=SLOTS, **SIZES) as backend:
        yield Model(backend, plain, path)
    plain.close()


def _check(model: Model, prompt: list[int], tokens: list[int]) -> None:
    """Each token is the most probable one for llama.cpp after those before it. A nearly equal one
    may come first in a batch of another size."""
    logprobs = model.plain.logprobs([*prompt, *tokens])[len(prompt) - 1 : -1]
    logprobs[:, END] = -np.inf
    chosen = logprobs[np.arange(COUNT), tokens]

    assert len(tokens) == COUNT
    assert (logprobs.max(axis=1) - chosen).max() < NEARLY


def _engine(backend: LlamaBackend) -> Engine:
    return make_engine(backend, chunk_cap=256, saved_bytes=64 << 20)


def _request(i: int, prompt: list[int], **changes: Any) -> SequenceRequest:
    options = {"max_tokens": COUNT, "ignore_eos": True, "max_draft": 0, **changes}
    return make_request(i, prompt, **options)


def _started(events: list[Event], sequence_id: int) -> Started:
    (event,) = [e for e in select_events(events, Started) if e.sequence_id == sequence_id]
    return event


def test_the_output_depends_on_the_whole_prompt(model: Model) -> None:
    """Not only on its last tokens; the other tests depend on this."""
    changed = [*PROMPT[:20], *([7] * 68), *PROMPT[88:]]
    rows = [model.plain.logprobs(prompt)[-1] for prompt in (PROMPT, changed)]

    assert np.abs(rows[0] - rows[1]).max() > NEARLY


def test_streams_have_llama_cpps_tokens(model: Model) -> None:
    """One alone, and three at once with prompts of different lengths."""
    prompts = [PROMPT, PROMPT[:50], [5, 6, *PROMPT[:70]]]
    for together in ([PROMPT], prompts[: 1 if model.path.stem in ONE_SEQUENCE else None]):
        requests = [_request(i, prompt, reuse=False) for i, prompt in enumerate(together)]
        events = run_engine(_engine(model.backend), *requests)
        for i, prompt in enumerate(together):
            _check(model, prompt, output_tokens(events, i))


def test_a_follow_up_continues_its_slot(model: Model) -> None:
    """With all tokens that are computed."""
    engine = _engine(model.backend)
    output = output_tokens(run_engine(engine, _request(0, PROMPT)))
    prompt = [*PROMPT, *output, 7, 8, 9]
    events = run_engine(engine, _request(1, prompt))

    assert _started(events, 1).cached_tokens == len(PROMPT) + COUNT - 1
    _check(model, prompt, output_tokens(events, 1))


def test_a_shared_prefix_is_reused_as_the_memory_allows(model: Model) -> None:
    """A recurrent state is computed again; the tokens are the same."""
    engine = _engine(model.backend)
    run_engine(engine, _request(0, PROMPT))
    prompt = [*PROMPT[:80], 7, 8, 9]
    events = run_engine(engine, _request(1, prompt))

    assert _started(events, 1).cached_tokens == (80 if model.backend.can_trim else 0)
    _check(model, prompt, output_tokens(events, 1))


def test_the_state_of_a_running_sequence_is_shared(model: Model) -> None:
    """With a second sequence that continues its text; both have their own tokens."""
    engine = _engine(model.backend)
    events = run_engine(engine, _request(0, PROMPT), steps=5)
    prompt = [*PROMPT, *output_tokens(events), 7, 8]
    events += run_engine(engine, _request(1, prompt))

    assert _started(events, 1).source is CacheSource.LIVE
    _check(model, prompt, output_tokens(events, 1))
    _check(model, PROMPT, output_tokens(events))


def test_a_snapshot_resumes_in_another_context(model: Model) -> None:
    """With two more slots; most do not compute the prompt again."""
    engine = _engine(model.backend)
    engine.submit(_request(0, PROMPT, request_id="r0"))
    events: list[Event] = []
    while len(output_tokens(events)) < COUNT // 2:
        events += run_engine(engine, steps=1)
    prefix = write_and_read(save_prefix(engine, "r0"))
    with open_backend(model.path, slots=SLOTS + 2, **SIZES) as backend:
        engine = _engine(backend)
        engine.prefix_cache.put(prefix)
        resumed = array("i", saved_output(prefix))
        events = run_engine(engine, _request(0, PROMPT, resumed=resumed))

    expected = CacheSource.NONE if model.path.stem in COMPUTED_AGAIN else CacheSource.DISK
    assert _started(events, 0).source is expected
    _check(model, PROMPT, [*resumed, *output_tokens(events)])


def test_results_are_published() -> None:
    """The numbers of architectures, all of which these tests run."""
    names = [*COMMON.split(), *OTHERS.split()]
    num_together = len(names) - len(ONE_SEQUENCE)
    summary = (
        f"architectures: {len(names)} of {len(names) + 1} (cogvlm is refused) generate "
        f"llama.cpp's own tokens and share prefixes, {num_together} with several sequences at once "
        "(the others have one slot); "
        f"snapshots of {len(names) - len(COMPUTED_AGAIN)} fit any number of slots"
    )
    check_results("architectures", {"summary": summary, "columns": [], "rows": {}})
