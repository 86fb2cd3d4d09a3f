"""Sampler chains on rows of a large vocabulary, without a model."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference_svc.engine.constraint import TokenMask
from inference_svc.engine.sampling_params import Adaptive, Mirostat, Sampling, Stage
from inference_svc.llama.sampling.candidates import Candidates
from inference_svc.llama.sampling.chain import SamplerChain
from inference_svc.llama.sampling.native_filters import ModelSizes
from tests.support.sequences import make_request

SIZE = 50_000
MakeChain = Callable[..., SamplerChain]


@pytest.fixture
def make_chain() -> Iterator[MakeChain]:
    """Builds chains on a vocabulary of numbers; only DRY would need a real one."""
    with ExitStack() as stack:

        def make(
            sampling: Sampling, *, large_vocabulary: int = SIZE, end_token: int = -1
        ) -> SamplerChain:
            end_tokens = np.array([end_token] if end_token >= 0 else [], np.int32)
            min_tokens = 100 if end_token >= 0 else 0
            request = make_request(sampling=sampling, seed=1, min_tokens=min_tokens)
            sizes = ModelSizes(None, SIZE, 2048, large_vocabulary=large_vocabulary)
            chain = SamplerChain(request, sizes, end_tokens, lambda token: b"%d" % token)
            return stack.enter_context(closing(chain))

        yield make


FILTERS = {
    "top_k 1": Sampling(top_k=1),
    "top_k 40": Sampling(top_k=40),
    "top_k 200": Sampling(top_k=200),
    "min_p": Sampling(top_k=0, top_p=1.0, min_p=0.05),
    "min_keep": Sampling(top_k=0, top_p=1.0, min_p=0.5, min_keep=30),
    "top_p": Sampling(top_k=0, top_p=0.4, min_p=0.0),
    "top_p that keeps thousands": Sampling(top_k=0, top_p=0.95, min_p=0.0),
    "top_n_sigma": Sampling(top_k=0, top_p=0.9, min_p=0.0, top_n_sigma=1.0),
    "top_n_sigma, top_k": Sampling(top_k=40, top_n_sigma=1.5),
    "biased": Sampling(logit_bias=((5, 8.0), (7, -100.0), (5, 1.0))),
    "penalised": Sampling(frequency_penalty=1.5, repetition_penalty=1.3, top_k=0, top_p=0.9),
}


# On flat rows llama.cpp's 32-bit sum of thousands of probabilities selects another token.
SPREADS = [(name, 3.0) for name in FILTERS] + [
    (name, 0.5) for name, sampling in FILTERS.items() if sampling.top_k or sampling.top_p == 1
]


@pytest.mark.parametrize(("name", "spread"), SPREADS)
def test_preselection_does_not_change_the_token(
    make_chain: MakeChain, name: str, spread: float
) -> None:
    rng = np.random.default_rng(7)
    scratch = Candidates(SIZE)
    preselecting = make_chain(FILTERS[name])
    plain = make_chain(FILTERS[name], large_vocabulary=SIZE + 1)
    for draw in range(25):
        row = rng.normal(0, spread, SIZE).astype(np.float32)
        before = row.copy()

        token = preselecting.sample(row, draw, scratch)
        assert token == plain.sample(row, draw, scratch)
        assert (row == before).all()
        preselecting.accept(token)
        plain.accept(token)


def test_only_chains_that_llama_cpp_runs_on_all_tokens_are_slow(make_chain: MakeChain) -> None:
    """Rows that numpy can reduce stay on the step thread."""
    slow = [
        Sampling(top_k=0, typical_p=0.9),
        Sampling(top_k=0, top_p=1.0, min_p=0.0, dynatemp_range=0.5),
        Sampling(stages=(Stage.TEMPERATURE, Stage.TOP_P)),
    ]
    fast = [*FILTERS.values(), Sampling(temperature=0.0), Sampling(mirostat=Mirostat(2))]

    assert [sampling for sampling in slow + fast if make_chain(sampling).is_slow] == slow


def _mask(few: "np.ndarray[Any, Any]") -> TokenMask:
    allowed = np.zeros(SIZE, np.bool_)
    allowed[few] = True
    return TokenMask(allowed, few)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("top_k", [0, 40])
def test_banned_tokens_of_a_constraint_never_reach_the_filters(
    make_chain: MakeChain, top_k: int, with_ids: bool, many: bool
) -> None:
    """Typical-p selects the same tokens as if the constraint excluded the banned ones."""
    rng = np.random.default_rng(3)
    allowed = np.arange(100, 5100 if many else 140, dtype=np.int32)
    mask = _mask(np.append(allowed, np.int32(SIZE - 1)))
    mask = TokenMask(mask.allowed, None) if many else mask
    sampling = Sampling(typical_p=0.3, top_k=top_k, top_p=1.0, min_p=0.0)
    plain = make_chain(sampling)
    if with_ids:
        allowed = allowed[::2]
        sampling = replace(sampling, allowed_token_ids=tuple(range(0, 6000, 2)))
    chain, scratch = make_chain(sampling, end_token=SIZE - 1), Candidates(SIZE)
    for draw in range(40):
        row = rng.normal(0, 3, SIZE).astype(np.float32)
        row[-1] = 8.0

        expected = plain.sample(row, draw, scratch, _mask(allowed))
        assert chain.sample(row, draw, scratch, mask) == expected


@pytest.mark.parametrize("with_ids", [False, True])
def test_a_banned_end_token_never_reaches_typical_p(
    make_chain: MakeChain, *, with_ids: bool
) -> None:
    """Without a constraint too: the token is that of a row where the end is very improbable."""
    rng = np.random.default_rng(3)
    ids = tuple(range(0, 6000, 2)) if with_ids else ()
    sampling = Sampling(typical_p=0.3, top_k=0, top_p=1.0, min_p=0.0, allowed_token_ids=ids)
    chain, plain = make_chain(sampling, end_token=SIZE - 1), make_chain(sampling)
    scratch = Candidates(SIZE)
    for draw in range(20):
        row = rng.normal(0, 3, SIZE).astype(np.float32)
        without = row.copy()
        without[-1] = -60.0
        row[-1] = 8.0

        assert chain.sample(row, draw, scratch) == plain.sample(without, draw, scratch)


def test_a_wrong_threshold_estimate_falls_back_to_all_tokens(make_chain: MakeChain) -> None:
    """A single peak above equal logits still has k candidates."""
    row = np.zeros(SIZE, np.float32)
    row[-1] = 50.0

    assert make_chain(Sampling(top_k=40)).sample(row, 0, Candidates(SIZE)) == SIZE - 1


def test_draws_from_all_tokens_follow_the_probabilities(make_chain: MakeChain) -> None:
    """Chi-squared over 6,000 draws from eight tokens spread over the vocabulary."""
    tokens = np.linspace(0, SIZE - 1, 8).astype(int)
    weights = np.array([8, 7, 6, 5, 4, 3, 2, 1], np.float64)
    row = np.full(SIZE, -np.inf, np.float32)
    row[tokens] = np.log(weights)
    chain = make_chain(Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
    scratch = Candidates(SIZE)
    counts = Counter(chain.sample(row, draw, scratch) for draw in range(6000))
    expected = weights / weights.sum() * 6000
    actual = np.array([counts[int(token)] for token in tokens])

    assert sum(counts.values()) == actual.sum()
    assert float(((actual - expected) ** 2 / expected).sum()) < 24.3  # p = 0.001 at 7 degrees


def test_temperature_scales_draws_from_all_tokens(make_chain: MakeChain) -> None:
    """A low temperature almost always selects the best token."""
    row = np.zeros(SIZE, np.float32)
    row[123] = 2.0
    chain = make_chain(Sampling(temperature=0.1, top_k=0, top_p=1.0, min_p=0.0))
    scratch = Candidates(SIZE)

    assert [chain.sample(row, draw, scratch) for draw in range(100)].count(123) > 95


@pytest.mark.parametrize("tau", [5.0, 100.0])
@pytest.mark.parametrize("row", [np.zeros(SIZE), np.linspace(0, -1, SIZE), np.eye(1, SIZE)[0] * 90])
def test_mirostat_does_not_overflow(
    make_chain: MakeChain, row: "np.ndarray[Any, Any]", tau: float
) -> None:
    """Its estimated count is a power that exceeds a float for some rows and targets."""
    chain = make_chain(Sampling(mirostat=Mirostat(version=1, tau=tau, eta=1.0)))
    tokens = [chain.sample(row.astype(np.float32), draw, Candidates(SIZE)) for draw in range(10)]

    assert all(0 <= token < SIZE for token in tokens)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(mirostat=Mirostat(version=1)),
        Sampling(mirostat=Mirostat(version=2)),
        Sampling(adaptive=Adaptive(target=0.5)),
    ],
    ids=["mirostat 1", "mirostat 2", "adaptive"],
)
def test_a_row_without_allowed_tokens_is_not_an_error(
    make_chain: MakeChain, sampling: Sampling
) -> None:
    """A contradictory request (only the end token allowed, and banned) must not fail the step."""
    chain, scratch = make_chain(sampling), Candidates(SIZE)
    for draw in range(3):
        assert 0 <= chain.sample(np.full(SIZE, -np.inf, np.float32), draw, scratch) < SIZE
    assert chain.sample(np.eye(1, SIZE)[0].astype(np.float32) * 90, 3, scratch) == 0
