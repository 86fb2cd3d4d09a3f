"""Sampler chains compared with llama.cpp's own, and sampling on threads."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np
import pytest

from inference_svc.engine.backend import SampledToken, SampleFailure, SampleTask
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling, Stage
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.sampling.batch_sampler import _chain
from inference_svc.llama.sampling.candidates import Candidates, Logits
from inference_svc.llama.sampling.rng import SamplingRng
from tests.support.llama_engines import make_engine, open_backend
from tests.support.sequences import make_request

SLOTS = 4
CONTEXT = 256
PROMPT = tuple(range(40, 80)) * 2


class ComparingBackend(LlamaBackend):
    """Compares the samples of threads with those of the calling thread, and preselects candidates
    as with a large vocabulary."""

    def __init__(self, settings: BackendSettings) -> None:
        super().__init__(settings, large_vocabulary=0)
        self.num_parallel = 0

    def sample(self, tasks: Sequence[SampleTask]) -> list[SampledToken | SampleFailure]:
        """Sample both ways."""
        rows = [self.logits(task.row) for task in tasks]
        before = [row.copy() for row in rows]
        alone = [
            self._row_sampler._sample(task, row) for task, row in zip(tasks, before, strict=True)
        ]
        together = super().sample(tasks)
        assert together == alone
        assert all(map(np.array_equal, rows, before))
        self.num_parallel += sum(_chain(task).is_slow for task in tasks) > 1
        return together


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots."""
    sizes: dict[str, Any] = {"context_tokens": CONTEXT, "batch_tokens": 256, "sampling_threads": 2}
    with open_backend(make=ComparingBackend, **sizes) as backend:
        yield backend


def _row(backend: LlamaBackend, seed: int, spread: float = 3.0) -> Logits:
    rng = np.random.default_rng(seed)
    return rng.normal(0, spread, backend.limits.vocabulary_size).astype(np.float32)


# --- llama.cpp's chain, as built by `common_sampler_init` -----------------------------------------


def _native_filters(
    sampling: Sampling, backend: LlamaBackend, draws: SamplingRng, draw: int
) -> dict[Stage, Any]:
    """Every filter; a disabled one has no effect."""
    vocab = llama_cpp.llama_model_get_vocab(backend.model)
    keep, dry = sampling.min_keep, sampling.dry or Dry()
    return {
        Stage.PENALTIES: llama_cpp.llama_sampler_init_penalties(
            backend.limits.vocabulary_size,
            sampling.penalty_last_n,
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        ),
        Stage.DRY: llama_cpp.llama_sampler_init_dry(
            vocab, dry.multiplier, dry.base, dry.allowed_length, CONTEXT, None, 0
        ),
        Stage.TOP_N_SIGMA: llama_cpp.llama_sampler_init_top_n_sigma(sampling.top_n_sigma),
        Stage.TOP_K: llama_cpp.llama_sampler_init_top_k(sampling.top_k),
        Stage.TYPICAL_P: llama_cpp.llama_sampler_init_typical(sampling.typical_p, keep),
        Stage.TOP_P: llama_cpp.llama_sampler_init_top_p(sampling.top_p, keep),
        Stage.MIN_P: llama_cpp.llama_sampler_init_min_p(sampling.min_p, keep),
        Stage.XTC: llama_cpp.llama_sampler_init_xtc(
            sampling.xtc_probability, sampling.xtc_threshold, keep, draws.seed(draw, b"xtc")
        ),
        Stage.TEMPERATURE: llama_cpp.llama_sampler_init_temp_ext(
            sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent
        ),
        Stage.INFILL: llama_cpp.llama_sampler_init_infill(vocab),
    }


def _native_sample(
    backend: LlamaBackend, sampling: Sampling, row: Logits, draw: int, history: Sequence[int]
) -> int:
    """The token that llama.cpp samples with all samplers on the whole vocabulary."""
    draws = SamplingRng(1, 0)
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    biases = (llama_cpp.llama_logit_bias * len(sampling.logit_bias))()
    for entry, (token, bias) in zip(biases, sampling.logit_bias, strict=True):
        entry.token, entry.bias = token, bias
    natives = [llama_cpp.llama_sampler_init_logit_bias(len(row), len(biases), biases)]
    filters = _native_filters(sampling, backend, draws, draw)
    natives += [filters.pop(stage) for stage in sampling.stages]
    natives.append(llama_cpp.llama_sampler_init_dist(draws.seed(draw, b"draw")))
    for native in natives:
        llama_cpp.llama_sampler_chain_add(chain, native)
    for token in history:
        llama_cpp.llama_sampler_accept(chain, token)
    scratch = Candidates(len(row))
    scratch.fill(row, None)
    llama_cpp.llama_sampler_apply(chain, scratch.reference)
    for native in (chain, *filters.values()):
        llama_cpp.llama_sampler_free(native)
    return scratch.selected()


SAMPLINGS = {
    "defaults": Sampling(),
    "greedy": Sampling(temperature=0.0),
    "dynamic temperature": Sampling(dynatemp_range=0.5, dynatemp_exponent=1.4),
    "top_p": Sampling(top_k=0, top_p=0.7, min_p=0.0),
    "min_p": Sampling(top_k=0, top_p=1.0, min_p=0.2),
    "typical_p": Sampling(top_k=0, top_p=1.0, min_p=0.0, typical_p=0.6),
    "top_n_sigma": Sampling(top_k=0, top_p=1.0, min_p=0.0, top_n_sigma=1.2),
    "xtc": Sampling(xtc_probability=0.5, xtc_threshold=0.05),
    "bias": Sampling(logit_bias=((9, 6.0), (11, -3.0))),
    "repetition": Sampling(repetition_penalty=1.6),
    "frequency": Sampling(frequency_penalty=0.7, presence_penalty=-0.4, penalty_last_n=20),
    "dry": Sampling(dry=Dry(multiplier=3.0, allowed_length=1, sequence_breakers=())),
    "all penalties, greedy": Sampling(
        temperature=0.0,
        repetition_penalty=1.3,
        dry=Dry(multiplier=1.0, allowed_length=1, sequence_breakers=()),
    ),
    "infill": Sampling(stages=(Stage.TOP_K, Stage.TOP_P, Stage.INFILL)),
    "penalties behind a filter": Sampling(
        repetition_penalty=1.6,
        stages=(Stage.TOP_K, Stage.PENALTIES, Stage.TEMPERATURE),
    ),
    "temperature first": Sampling(
        temperature=1.7, stages=(Stage.TEMPERATURE, Stage.TOP_P, Stage.MIN_P)
    ),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_chain_samples_the_same_tokens_as_llama_cpp(backend: LlamaBackend, name: str) -> None:
    """Over 60 rows, with penalties for the previous tokens."""
    sampling, scratch = SAMPLINGS[name], Candidates(backend.limits.vocabulary_size)
    chain = backend.new_sampler(make_request(prompt=PROMPT, sampling=sampling))
    history = list(PROMPT)
    for draw in range(60):
        row = _row(backend, draw)
        row[history[-12:]] += 6.0  # repetitions are likely, so that penalties have an effect

        token = chain.sample(row, draw, scratch)
        assert token == _native_sample(backend, sampling, row, draw, history)
        chain.accept(token)
        history.append(token)
    chain.close()


@pytest.mark.parametrize("temperature", [0.8, 1.6])
@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_updates_mu_as_llama_cpp_does(
    backend: LlamaBackend, version: int, temperature: float
) -> None:
    """The same mu gives the same token and the same new mu."""
    tau, eta, size = 3.0, 0.4, backend.limits.vocabulary_size
    sampling = Sampling(temperature=temperature, mirostat=Mirostat(version, tau, eta))
    chain = backend.new_sampler(make_request(sampling=sampling))
    scratch, draws = Candidates(size), SamplingRng(1, 0)
    init = llama_cpp.llama_sampler_init_mirostat
    for draw in range(20):
        row, seed = _row(backend, draw), draws.seed(draw, b"draw")
        (mu,) = chain.hidden
        # A native sampler starts with a mu of twice its tau; this one has the mu of the chain.
        sampler = (
            init(size, seed, mu / 2, eta, 100)
            if version == 1
            else llama_cpp.llama_sampler_init_mirostat_v2(seed, mu / 2, eta)
        )
        scratch.fill(row / np.float32(temperature), None)
        llama_cpp.llama_sampler_apply(sampler, scratch.reference)
        native, surprise = scratch.selected(), -np.log2(scratch.view()["p"][scratch.array.selected])
        llama_cpp.llama_sampler_free(sampler)

        assert chain.sample(row, draw, scratch) == native
        assert chain.hidden == pytest.approx((mu - eta * (surprise - tau),), abs=1e-3)
    chain.close()


def test_adaptive_p_adapts_as_llama_cpp_does(backend: LlamaBackend) -> None:
    """The transformed logits of each draw equal llama.cpp's after the same tokens."""
    target, decay, size = 0.3, 0.8, backend.limits.vocabulary_size
    sampling = Sampling(top_k=20, adaptive=Adaptive(target, decay))
    chain = backend.new_sampler(make_request(sampling=sampling))
    scratch, native_scratch = Candidates(size), Candidates(size)
    native = llama_cpp.llama_sampler_init_adaptive_p(target, decay, 7)
    filters = backend.new_sampler(make_request(sampling=Sampling(top_k=20)))
    for draw in range(20):
        row = _row(backend, draw)
        token = chain.sample(row, draw, scratch)
        while True:  # llama.cpp has its own random numbers: repeat until it samples the same token
            filters.sample(row, draw, native_scratch)
            llama_cpp.llama_sampler_apply(native, native_scratch.reference)
            if native_scratch.selected() == token:
                break
        llama_cpp.llama_sampler_accept(native, token)

        expected = np.sort(native_scratch.view()["logit"])
        assert np.sort(scratch.view()["logit"]) == pytest.approx(expected, abs=1e-3)
    llama_cpp.llama_sampler_free(native)
    filters.close()
    chain.close()


# --- one row --------------------------------------------------------------------------------------


def test_draws_follow_the_probabilities(backend: LlamaBackend) -> None:
    """Two tokens with probabilities of 3:1, over 4,000 derived seeds (4 sigma)."""
    row = np.full(backend.limits.vocabulary_size, -np.inf, np.float32)
    row[[5, 9]] = np.log([0.75, 0.25])
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    chain = backend.new_sampler(make_request(sampling=sampling))
    scratch = Candidates(len(row))
    share = sum(chain.sample(row, draw, scratch) == 5 for draw in range(4000)) / 4000
    chain.close()

    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 4000) ** 0.5


def test_biases_and_bans_change_the_token(backend: LlamaBackend) -> None:
    """Logit bias, allowed tokens, `ignore_eos` and `min_tokens`, on one row."""
    row = np.zeros(backend.limits.vocabulary_size, np.float32)
    end = min(backend.vocabulary.end_tokens)
    row[[end, 5, 9]] = [9.0, 8.0, 7.0]
    scratch = Candidates(len(row))

    def sample(draw: int = 0, **changes: Any) -> int:
        chain = backend.new_sampler(make_request(**changes))
        token = chain.sample(row, draw, scratch)
        chain.close()
        return token

    greedy = Sampling(temperature=0.0)
    assert sample() == end
    assert sample(ignore_eos=True) == 5
    assert sample(min_tokens=1) == 5
    assert sample(min_tokens=1, draw=1) == end
    assert sample(ignore_eos=True, sampling=replace(greedy, logit_bias=((5, -100.0),))) == 9
    assert sample(ignore_eos=True, sampling=replace(greedy, logit_bias=((9, 5.0),))) == 9
    assert sample(ignore_eos=True, sampling=replace(greedy, allowed_token_ids=(9, 11))) == 9


def test_logprobs_are_those_of_the_model(backend: LlamaBackend) -> None:
    """Before the filters, best first, and normalized over the vocabulary."""
    row = np.random.default_rng(1).normal(0, 2, backend.limits.vocabulary_size).astype(np.float32)
    chain = backend.new_sampler(make_request(top_logprobs=5))
    best = int(row.argmax())
    logprob = chain.logprobs(row, best, Candidates(len(row)))
    chain.close()

    assert logprob is not None
    assert [entry.token for entry in logprob.top] == np.argsort(-row)[:5].tolist()
    expected = row[best] - np.log(np.exp(row.astype(np.float64)).sum())
    assert logprob.chosen.logprob == pytest.approx(float(expected), abs=1e-4)


# --- rows and threads -----------------------------------------------------------------------------

MIXED = (
    Sampling(top_k=0, typical_p=0.8),
    Sampling(stages=(Stage.TEMPERATURE, Stage.TOP_P)),
    Sampling(top_k=0, top_p=1.0, dynatemp_range=0.3, repetition_penalty=1.2),
    Sampling(temperature=0.0),
    Sampling(),
)


def _random_request(rng: random.Random, sequence_id: int) -> SequenceRequest:
    return make_request(
        sequence_id,
        [rng.randrange(40, 500) for _ in range(rng.randrange(5, 120))],
        sampling=rng.choice(MIXED),
        seed=sequence_id,
        max_tokens=rng.randrange(2, 60),
        top_logprobs=rng.choice([None, 3]),
        ignore_eos=True,
        reuse=False,
    )


@pytest.mark.timeout(120)  # four seconds on an idle machine
def test_rows_on_threads_give_the_same_results(backend: ComparingBackend) -> None:
    """1,000 steps of prompts and outputs in all slots: tokens and log probabilities are those of a
    single thread, and rows are restored."""
    engine = make_engine(backend, chunk_cap=32)
    rng, mixed = random.Random(5), 0
    for step in range(1000):
        if len(engine.running) < SLOTS:
            engine.submit(_random_request(rng, step))
        decoding = {sequence.is_decoding for sequence in engine.running}
        mixed += len(engine.running) == SLOTS and len(decoding) == 2
        engine.step()

    assert mixed > 100
    assert backend.num_parallel > 100


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(), Sampling(top_k=5)])
def test_logits_that_are_not_finite_are_a_failure(
    backend: LlamaBackend, sampling: Sampling
) -> None:
    """Not a token by chance: of a damaged model, or of an adapter with too large values."""
    row = np.full(backend.limits.vocabulary_size, np.nan, np.float32)
    task = SampleTask(0, backend.new_sampler(make_request(sampling=sampling)), 0)

    assert isinstance(backend._row_sampler._sample(task, row), SampleFailure)
