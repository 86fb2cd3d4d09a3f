"""Sampler chains on rows of a large vocabulary, without a model."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference_svc.engine.constraint import TokenMask
from inference_svc.engine.sampling_params import Adaptive, Mirostat, Sampling, Stage
from inference_svc.llama.sampling.candidates import Candidates
from inference_svc.llama.sampling.chain import SamplerChain
from inference_svc.llama.sampling.native_filters import ModelSizes
from tests.support.sequences import a_request

SIZE = 50_000
NO_ENDS = np.empty(0, np.int32)


def a_chain(sampling: Sampling, size: int = SIZE, seed: int = 1) -> SamplerChain:
    """A chain over a vocabulary of numbers; only DRY would need a real one."""
    request = a_request(sampling=sampling, seed=seed)
    return SamplerChain(request, ModelSizes(None, size, 2048), NO_ENDS, lambda token: b"%d" % token)


LEADING = {
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


# On flat rows llama.cpp's sum of thousands of 32-bit probabilities ends at another token than ours.
SPREADS = [(name, 3.0) for name in LEADING] + [
    (name, 0.5) for name, sampling in LEADING.items() if sampling.top_k or sampling.top_p == 1
]


@pytest.mark.parametrize(("name", "spread"), SPREADS)
def test_a_short_list_changes_no_choice(
    monkeypatch: pytest.MonkeyPatch, name: str, spread: float
) -> None:
    """Looking at the likely candidates only gives the token that looking at all gives, and leaves
    the row as it was."""
    rng = np.random.default_rng(7)
    scratch = Candidates(SIZE)
    quick = a_chain(LEADING[name])
    monkeypatch.setattr("inference_svc.llama.sampling.candidate_selection.LARGE", SIZE + 1)
    thorough = a_chain(LEADING[name])
    for draw in range(25):
        row = rng.normal(0, spread, SIZE).astype(np.float32)
        before = row.copy()

        chosen = quick.choose(row, draw, scratch)
        assert chosen == thorough.choose(row, draw, scratch)
        assert (row == before).all()
        quick.accept(chosen)
        thorough.accept(chosen)
    quick.close()
    thorough.close()


def test_only_rows_that_take_long_are_worth_a_thread() -> None:
    """What numpy sees through on the row itself stays on the step thread."""
    slow = [
        Sampling(top_k=0, typical_p=0.9),
        Sampling(top_k=0, top_p=1.0, min_p=0.0, dynatemp_range=0.5),
        Sampling(stages=(Stage.TEMPERATURE, Stage.TOP_P)),
    ]
    quick = [*LEADING.values(), Sampling(temperature=0.0), Sampling(mirostat=Mirostat(2))]
    chains = {sampling: a_chain(sampling) for sampling in slow + quick}

    assert [sampling for sampling, chain in chains.items() if chain.is_slow] == slow
    for chain in chains.values():
        chain.close()


def _mask(few: "np.ndarray[Any, Any]") -> TokenMask:
    allowed = np.zeros(SIZE, np.bool_)
    allowed[few] = True
    return TokenMask(allowed, few)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("top_k", [0, 40])
def test_what_is_forbidden_beside_a_constraint_never_reaches_the_filters(
    top_k: int, with_ids: bool, many: bool
) -> None:
    """Typical-p chooses as where the constraint itself leaves the token out, in every step."""
    rng = np.random.default_rng(3)
    left = np.arange(100, 5100 if many else 140, dtype=np.int32)
    mask = _mask(np.append(left, np.int32(SIZE - 1)))
    mask = TokenMask(mask.allowed, None) if many else mask
    sampling = Sampling(typical_p=0.3, top_k=top_k, top_p=1.0, min_p=0.0)
    plain = a_chain(sampling)
    if with_ids:
        left = left[::2]
        ids = tuple(range(0, 6000, 2))
        sampling = replace(sampling, allowed_token_ids=ids)
    ends = np.array([SIZE - 1], np.int32)
    request = a_request(sampling=sampling, seed=1, min_tokens=100)
    chain = SamplerChain(request, ModelSizes(None, SIZE, 2048), ends, lambda token: b"%d" % token)
    scratch = Candidates(SIZE)
    for draw in range(40):
        row = rng.normal(0, 3, SIZE).astype(np.float32)
        row[-1] = 8.0

        expected = plain.choose(row, draw, scratch, _mask(left))
        assert chain.choose(row, draw, scratch, mask) == expected
    plain.close()
    chain.close()


@pytest.mark.parametrize("with_ids", [False, True])
def test_an_end_that_may_not_come_yet_never_reaches_typical_p(*, with_ids: bool) -> None:
    """Without a constraint too: the choice is that of a row in which the end is all but out."""
    rng = np.random.default_rng(3)
    ids = tuple(range(0, 6000, 2)) if with_ids else ()
    sampling = Sampling(typical_p=0.3, top_k=0, top_p=1.0, min_p=0.0, allowed_token_ids=ids)
    ends = np.array([SIZE - 1], np.int32)
    request = a_request(sampling=sampling, seed=1, min_tokens=100)
    chain = SamplerChain(request, ModelSizes(None, SIZE, 2048), ends, lambda token: b"%d" % token)
    plain, scratch = a_chain(sampling), Candidates(SIZE)
    for draw in range(20):
        row = rng.normal(0, 3, SIZE).astype(np.float32)
        without = row.copy()
        without[-1] = -60.0
        row[-1] = 8.0

        assert chain.choose(row, draw, scratch) == plain.choose(without, draw, scratch)
    plain.close()
    chain.close()


def test_a_row_that_defeats_the_guess_is_looked_at_whole() -> None:
    """A single peak above equal logits still leaves k candidates."""
    row = np.zeros(SIZE, np.float32)
    row[-1] = 50.0
    chain = a_chain(Sampling(top_k=40))

    assert chain.choose(row, 0, Candidates(SIZE)) == SIZE - 1
    chain.close()


def test_draws_from_all_tokens_follow_the_probabilities() -> None:
    """Chi-squared over 6,000 draws from eight tokens spread over the vocabulary."""
    places = np.linspace(0, SIZE - 1, 8).astype(int)
    weights = np.array([8, 7, 6, 5, 4, 3, 2, 1], np.float64)
    row = np.full(SIZE, -np.inf, np.float32)
    row[places] = np.log(weights)
    chain = a_chain(Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
    scratch = Candidates(SIZE)
    counts = Counter(chain.choose(row, draw, scratch) for draw in range(6000))
    chain.close()
    expected = weights / weights.sum() * 6000
    seen = np.array([counts[int(place)] for place in places])

    assert sum(counts.values()) == seen.sum()
    assert float(((seen - expected) ** 2 / expected).sum()) < 24.3  # p = 0.001 at 7 degrees


def test_temperature_shapes_draws_from_all_tokens() -> None:
    """A low temperature all but always takes the best."""
    row = np.zeros(SIZE, np.float32)
    row[123] = 2.0
    chain = a_chain(Sampling(temperature=0.1, top_k=0, top_p=1.0, min_p=0.0))
    scratch = Candidates(SIZE)
    taken = [chain.choose(row, draw, scratch) for draw in range(100)]
    chain.close()

    assert taken.count(123) > 95


@pytest.mark.parametrize("tau", [5.0, 100.0])
@pytest.mark.parametrize("row", [np.zeros(SIZE), np.linspace(0, -1, SIZE), np.eye(1, SIZE)[0] * 90])
def test_mirostat_bears_every_row_and_target(row: "np.ndarray[Any, Any]", tau: float) -> None:
    """Its estimate is a power that no float can hold: an exception here would end the engine."""
    chain = a_chain(Sampling(mirostat=Mirostat(version=1, tau=tau, eta=1.0)))
    tokens = [chain.choose(row.astype(np.float32), draw, Candidates(SIZE)) for draw in range(10)]
    chain.close()

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
def test_a_row_without_any_token_left_is_borne(sampling: Sampling) -> None:
    """What contradicts itself (only the end allowed, the end forbidden) harms nobody else."""
    chain, scratch = a_chain(sampling), Candidates(SIZE)
    for draw in range(3):
        assert 0 <= chain.choose(np.full(SIZE, -np.inf, np.float32), draw, scratch) < SIZE
    assert chain.choose(np.eye(1, SIZE)[0].astype(np.float32) * 90, 3, scratch) == 0
    chain.close()
