"""llama.cpp's filters, built from `Sampling` and applied in the requested order."""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import llama_cpp

from inference_svc.engine.sampling_params import Dry, Sampling, Stage
from inference_svc.llama.sampling.candidate_selection import LARGE_VOCABULARY
from inference_svc.llama.sampling.candidates import Candidates

STATEFUL = frozenset({Stage.PENALTIES, Stage.DRY})
"""Stages that depend on previous tokens; they only change the logits of these tokens."""


class ModelSizes(NamedTuple):
    """Properties of a model that samplers depend on: its native vocabulary, two sizes in tokens,
    the tokens that the model file forbids, and the vocabulary size from which candidates are
    preselected."""

    vocab: Any
    vocabulary_size: int
    context_tokens: int
    suppressed: tuple[int, ...] = ()
    large_vocabulary: int = LARGE_VOCABULARY


class NativeFilters:
    """Consecutive llama.cpp filters of one sequence. Free them with `close`.

    Adjacent filters form one native chain, so that a row costs one call. XTC is random: it
    separates chains and is created with a new seed for each draw.
    """

    def __init__(self, stages: Iterable[Stage], sampling: Sampling, sizes: ModelSizes) -> None:
        self._sampling = sampling
        self._chains: list[Any] = []  # None stands for XTC
        self._stateful: list[Any] = []
        for is_xtc, group in groupby(stages, key=lambda stage: stage is Stage.XTC):
            if is_xtc:
                self._chains.append(None)
                continue
            members = list(group)
            chain = _create_chain(_FACTORIES[stage](sampling, sizes) for stage in members)
            self._chains.append(chain)
            if not STATEFUL.isdisjoint(members):
                self._stateful.append(chain)

    @property
    def is_stateful(self) -> bool:
        """Whether previous tokens affect the filters."""
        return bool(self._stateful)

    def accept(self, token: int) -> None:
        """Add a prompt or output token to the history."""
        for chain in self._stateful:
            llama_cpp.llama_sampler_accept(chain, token)

    def apply(self, scratch: Candidates, xtc_seed: Callable[[], int]) -> None:
        """Filter the candidates."""
        for chain in self._chains:
            if chain is None:
                self._apply_xtc(scratch, xtc_seed())
            else:
                llama_cpp.llama_sampler_apply(chain, scratch.reference)

    def _apply_xtc(self, scratch: Candidates, seed: int) -> None:
        settings = self._sampling
        sampler = llama_cpp.llama_sampler_init_xtc(
            settings.xtc_probability, settings.xtc_threshold, settings.min_keep, seed
        )
        llama_cpp.llama_sampler_apply(sampler, scratch.reference)
        llama_cpp.llama_sampler_free(sampler)

    def close(self) -> None:
        """Free the native memory; `apply` does nothing afterwards."""
        for chain in self._chains:
            if chain is not None:
                llama_cpp.llama_sampler_free(chain)
        self._chains, self._stateful = [], []


def _create_chain(samplers: Iterator[Any]) -> Any:
    params = llama_cpp.llama_sampler_chain_default_params()
    params.no_perf = True
    chain = llama_cpp.llama_sampler_chain_init(params)
    for sampler in samplers:
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    return chain


def _create_penalties(sampling: Sampling, sizes: ModelSizes) -> Any:
    return llama_cpp.llama_sampler_init_penalties(
        sizes.vocabulary_size,
        _window(sampling.penalty_last_n, sizes),
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )


def _create_dry(dry: Dry, sizes: ModelSizes) -> Any:
    breakers = [text.encode() for text in dry.sequence_breakers]
    return llama_cpp.llama_sampler_init_dry(
        sizes.vocab,
        dry.multiplier,
        dry.base,
        dry.allowed_length,
        _window(dry.penalty_last_n, sizes),
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )


def _window(last_n: int, sizes: ModelSizes) -> int:
    """The number of last tokens to consider; -1 means the whole context."""
    return last_n if last_n >= 0 else sizes.context_tokens


_FACTORIES: Mapping[Stage, Callable[[Sampling, ModelSizes], Any]] = {
    Stage.PENALTIES: _create_penalties,
    Stage.DRY: lambda settings, sizes: _create_dry(settings.dry or Dry(), sizes),
    Stage.TOP_N_SIGMA: lambda settings, _: llama_cpp.llama_sampler_init_top_n_sigma(
        settings.top_n_sigma
    ),
    Stage.TOP_K: lambda settings, _: llama_cpp.llama_sampler_init_top_k(settings.top_k),
    Stage.TYPICAL_P: lambda settings, _: llama_cpp.llama_sampler_init_typical(
        settings.typical_p, settings.min_keep
    ),
    Stage.TOP_P: lambda settings, _: llama_cpp.llama_sampler_init_top_p(
        settings.top_p, settings.min_keep
    ),
    Stage.MIN_P: lambda settings, _: llama_cpp.llama_sampler_init_min_p(
        settings.min_p, settings.min_keep
    ),
    Stage.TEMPERATURE: lambda settings, _: llama_cpp.llama_sampler_init_temp_ext(
        settings.temperature, settings.dynatemp_range, settings.dynatemp_exponent
    ),
    Stage.INFILL: lambda _, sizes: llama_cpp.llama_sampler_init_infill(sizes.vocab),
}
