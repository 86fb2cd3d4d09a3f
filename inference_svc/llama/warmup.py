"""Warm-up before SERVING: pages weights in, chooses the number of threads, and measures step times
and the costs of copies.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.cost_model.step_time import BLOCK
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.sampling.candidates import Logits
from inference_svc.llama.token_vectors import TokenVectors
from model_files.gguf import ModelFileInvalid

log = logging.getLogger(__name__)

# The engine takes the last core from the frontends only if steps become clearly faster, and only if
# they are long: short steps take no longer than the frontends' work per step, and compute threads
# that wait for a core at every barrier slow both down.
WORTHWHILE_SPEEDUP = 1.25
LONG_STEP_S = 0.02
_REPETITIONS = 3
_COPIED_TOKENS = 128
_MAX_MEASURED_ROWS = 32
_COMPARED_TOKENS = 8
_ALIKE = 1e-3  # the largest difference between logits, relative to the largest logit
_IMPOSSIBLE = -1e30  # logits of tokens that a model masks
# Share of the budget. Every step uses row times to size prompt chunks and fillers; token times are
# only used for drafts.
_ROWS_SHARE = 2 / 3


class WarmUp(NamedTuple):
    """Measurements. `threads` is the number of compute threads and `reason` why it was chosen;
    `step_times` has seconds per step by number of one-token rows, `token_times` seconds by tokens
    of a single row (None or empty without drafts); `draft_step_times` are those of the draft model
    by rows, if there is one."""

    threads: int
    reason: str
    step_times: dict[int, float]
    copy_costs: CopyCosts = CopyCosts()
    token_times: dict[int, float] | None = None
    draft_step_times: dict[int, float] | None = None


def warm_up(backend: LlamaBackend, *, cores: int, threads: int | None, budget_s: float) -> WarmUp:
    """Measure with dummy tokens; slots are empty afterwards. `threads` is the operator's setting,
    None to choose it."""
    rows = backend.limits.slots
    _time_step(backend, rows)
    if threads is None:
        threads, reason = _choose_threads(backend, rows, cores)
    else:
        reason = "as configured"
    backend.set_threads(threads)
    started = time.monotonic()
    times = _measure_counts(
        budget_s * _ROWS_SHARE,
        lambda count: _time_step(backend, count),
        _row_counts(rows),
        min_counts=2,  # one row and all rows: the rest is interpolated
    )
    remaining_s = started + budget_s - time.monotonic()
    token_times = _measure_counts(
        remaining_s, lambda count: _time_row(backend, count), _token_counts(backend), min_counts=1
    )
    return WarmUp(threads, reason, times, _measure_copies(backend), token_times)


def decode_full_batch(backend: LlamaBackend) -> None:
    """Decode the largest batch, so that GPU drivers allocate their buffers, which grow with the
    batch, while the memory of the load is tracked."""
    tokens = min(backend.limits.pass_tokens, backend.limits.slot_tokens)
    _fill(backend, tokens)
    backend.trim(0, 0)


def try_token_vectors(backend: LlamaBackend, path: Path) -> None:
    """Let the backend compute texts in rows of vectors if the model at `path` computes the vectors
    of tokens as it computes the tokens: some models scale what they look up, or look up more. Slots
    are empty afterwards."""
    limits = backend.limits
    try:
        vectors = TokenVectors.of_model(path, limits.vector_width, limits.vocabulary_size)
        if vectors is not None:
            backend.use_token_vectors(vectors)
            if not _reads_alike(backend, vectors):
                vectors = None
    except (ModelFileInvalid, DecodeError):
        log.warning("cannot compare vectors and tokens of %s", path.name, exc_info=True)
        vectors = None
    backend.use_token_vectors(vectors)
    log.info("texts are computed with the pictures beside them: %s", vectors is not None)


def _reads_alike(backend: LlamaBackend, vectors: TokenVectors) -> bool:
    """Whether the logits after some tokens equal those after their vectors."""
    limits = backend.limits
    count = min(_COMPARED_TOKENS, limits.batch_tokens, limits.slot_tokens)
    tokens = np.linspace(0, limits.vocabulary_size, count, endpoint=False, dtype=np.int32)
    row = Row(0, 0, tokens.tolist(), output=True)
    expected = _compute_logits(backend, TokenBatch.of([row]))
    logits = _compute_logits(backend, TokenBatch.of([row], [vectors.of(tokens)]))
    possible = expected > _IMPOSSIBLE
    limit = _ALIKE * np.abs(expected[possible]).max(initial=0.0)
    return np.array_equal(possible, logits > _IMPOSSIBLE) and np.allclose(
        logits[possible], expected[possible], rtol=0, atol=limit
    )


def _compute_logits(backend: LlamaBackend, batch: TokenBatch) -> Logits:
    backend.decode(batch)
    logits = backend.logits(0).copy()
    backend.trim(0, 0)
    return logits


def _measure_counts(
    budget_s: float, measure: Callable[[int], float], counts: Iterable[int], *, min_counts: int
) -> dict[int, float]:
    """The minimum seconds of each count, for as many counts as the budget allows, but at least the
    first `min_counts`. Other processes only ever add time; since counts are measured in turns, a
    busy moment does not affect all measurements of one count."""
    started = time.monotonic()
    times: dict[int, float] = {}
    for count in counts:
        times[count] = measure(count)
        if len(times) >= min_counts and time.monotonic() > started + budget_s / _REPETITIONS:
            break
    for _ in range(_REPETITIONS - 1):
        for count, seconds in times.items():
            times[count] = min(seconds, measure(count))
    return times


def _choose_threads(backend: LlamaBackend, rows: int, cores: int) -> tuple[int, str]:
    if cores == 1:
        return 1, "one core"
    fewer = cores - 1

    def measure(count: int) -> float:
        backend.set_threads(count)
        _time_step(backend, rows)
        return _time_step(backend, rows)

    seconds = _measure_counts(0.0, measure, (fewer, cores), min_counts=2)
    if seconds[fewer] < LONG_STEP_S:
        return fewer, f"a step takes {seconds[fewer] * 1e3:.1f} ms, and the frontends need a core"
    speedup = seconds[fewer] / seconds[cores]
    if speedup >= WORTHWHILE_SPEEDUP:
        return cores, f"{speedup:.2f}x faster than {fewer}"
    return fewer, f"{cores} are only {speedup:.2f}x as fast, and the frontends need a core"


def _measure_copies(backend: LlamaBackend) -> CopyCosts:
    """A stream copy is executed by the next decode, so it is measured as the time it adds to one; a
    state copy is measured at two lengths."""
    if backend.limits.slots < 2:
        return CopyCosts()
    tokens = min(_COPIED_TOKENS, backend.limits.batch_tokens, backend.limits.slot_tokens // 2)
    few = max(tokens // 8, 1)
    states = {count: _time_state_copy(backend, count) for count in (few, tokens)}
    token_s = max(states[tokens] - states[few], 0.0) / max(tokens - few, 1)
    fixed_s = max(states[few] - few * token_s, 0.0)
    if not backend.can_trim:
        return CopyCosts(0.0, fixed_s, token_s)
    copied_s = median(_time_stream_copy(backend) for _ in range(_REPETITIONS))
    plain_s = median(_time_step(backend, 1) for _ in range(_REPETITIONS))
    return CopyCosts(max(copied_s - plain_s, 0.0), fixed_s, token_s)


def _time_state_copy(backend: LlamaBackend, tokens: int) -> float:
    _fill(backend, tokens)
    seconds = []
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        backend.restore(1, backend.save(0))
        seconds.append(time.perf_counter() - started)
    _empty(backend)
    return median(seconds)


def _time_stream_copy(backend: LlamaBackend) -> float:
    _fill(backend, 1)
    started = time.perf_counter()
    backend.copy(0, 1, 1)
    backend.decode(TokenBatch.of([Row(1, 1, (0,), output=True)]))
    seconds = time.perf_counter() - started
    _empty(backend)
    return seconds


def _fill(backend: LlamaBackend, tokens: int) -> None:
    backend.decode(TokenBatch.of([Row(0, 0, (0,) * tokens, output=False)]))


def _empty(backend: LlamaBackend) -> None:
    for slot in (0, 1):
        backend.trim(slot, 0)


def _row_counts(slots: int) -> list[int]:
    """Row counts to measure, the most informative first: 1, all, powers of two, whole blocks, then
    the rest."""
    first = [1, slots, *(2**i for i in range(1, slots.bit_length()) if 2**i < slots)]
    max_rows = min(slots, _MAX_MEASURED_ROWS)
    first += range(BLOCK, max_rows + 1, BLOCK)
    return list(dict.fromkeys([*first, *range(1, max_rows + 1)]))


def _token_counts(backend: LlamaBackend) -> list[int]:
    """Powers of two up to the most tokens that one row may have with drafts."""
    limits = backend.limits
    if limits.output_rows == limits.slots or not backend.can_trim:
        return []
    max_tokens = min(limits.output_rows, limits.pass_tokens)
    return [2**i for i in range(max_tokens.bit_length())]


def _time_step(backend: LlamaBackend, rows: int) -> float:
    return _time_decode(backend, [Row(slot, 0, (0,), output=True) for slot in range(rows)])


def _time_row(backend: LlamaBackend, tokens: int) -> float:
    return _time_decode(backend, [Row(0, 0, (0,) * tokens, output=True, drafted=tokens - 1)])


def _time_decode(backend: LlamaBackend, rows: Sequence[Row]) -> float:
    batch = TokenBatch.of(rows)
    started = time.perf_counter()
    backend.decode(batch)
    seconds = time.perf_counter() - started
    for row in rows:
        backend.trim(row.slot, 0)
    return seconds
