"""Random models of llama.cpp's architectures: rejected drafts do not change log probabilities.

Each is compared with the same request without drafts, while it drafts and when its slot is reused.
"""

from array import array
from collections.abc import Iterator
from typing import Final

import pytest

from tests.outside.llama_cpp.test_prefix_reuse import (
    BEYOND,
    EXACT,
    OTHER,
    QUICK,
    VOCABULARY,
    WITHIN,
    Case,
    Model,
    Reuse,
    difference,
    logprobs,
    model_params,
    open_model,
    scored,
    started,
)
from tests.support.llama_engines import (
    finished_event,
    make_engine,
    output_tokens,
    run_engine,
)

COUNT: Final = 40
"""Tokens of output, with which a short prompt leaves a window."""
WRONG: Final = (5, 17, 18, 33)
"""Which of them are predicted wrongly, so that the draft behind them is rejected."""


@pytest.fixture(scope="module", params=model_params(lambda name, _: name in QUICK.split()))
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    """A model of each architecture, with output rows for drafts."""
    with open_model(tmp_path_factory.mktemp("models"), *request.param, draft_tokens=32) as opened:
        yield opened


@pytest.mark.parametrize("count", [WITHIN, BEYOND])
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
def test_rejected_drafts_do_not_change_the_output(model: Model, count: int, others: int) -> None:
    """Drafts are tried only where the memory can remove them, and a later request that reuses the
    slot is exact."""
    if model.is_alone and others:
        pytest.skip("it has one slot")
    case = Case(count, -1)
    alone = model.alone(case.first, COUNT)
    events = run_engine(model.engine(), scored(0, case.first, reuse=False, max_tokens=COUNT))
    predicted = array("i", output_tokens(events))
    for at in WRONG:
        predicted[at] = 3 + (predicted[at] + 1) % (VOCABULARY - 3)
    engine = make_engine(model.backend, chunk_cap=256, saved_bytes=64 << 20, clock=lambda: 0.0)
    drafting = scored(0, case.first, max_tokens=COUNT, max_draft=15, predicted=predicted)
    beside = scored(1, OTHER, max_tokens=COUNT, max_draft=15)
    events = run_engine(engine, drafting, *[beside] * others)
    output, finished = output_tokens(events), finished_event(events)
    prompt = case.prompt(output)
    reuse = Reuse(prompt, run_engine(engine, scored(9, prompt)), case.computed(output))

    assert difference(logprobs(events, 0), alone) < EXACT
    if model.backend.can_trim:
        assert 0 < finished.num_accepted < finished.num_drafted
    else:
        assert finished.num_drafted == 0
    assert difference(logprobs(reuse.events, 9), model.alone(prompt)) < EXACT
    assert started(reuse.events, 9).cached_tokens == model.num_exact(reuse)
    if others:
        assert difference(logprobs(events, 1), model.alone(OTHER, COUNT)) < EXACT
