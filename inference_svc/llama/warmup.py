"""Warm-up before SERVING: faults weights in, chooses the number of threads, and measures step time
by rows and the cost of copies.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.cost_model.step_time import BLOCK
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.llama.backend import LlamaBackend

# A last core is worth taking from the frontends only for a clearly faster step, and only where
# steps are long: in a short one the frontends' own work weighs as much, and compute threads that
# wait for a core at every barrier slow both down.
WORTHWHILE_SPEEDUP = 1.25
LONG_STEP_S = 0.02
_REPETITIONS = 3
_COPIED_TOKENS = 128
_MOST_MEASURED = 32  # rows, one by one
# Prompt chunks and fillers go by row times in every step; what drafts cost matters to some.
_ROWS_SHARE = 2 / 3


class WarmUp(NamedTuple):
    """What was measured: threads to compute with, why, seconds a step by number of one-token rows,
    what moving cells between slots costs, and seconds by the tokens of one row, as drafts make
    them (none without drafts)."""

    threads: int
    reason: str
    step_times: dict[int, float]
    copy_costs: CopyCosts = CopyCosts()
    token_times: dict[int, float] | None = None


def warm_up(backend: LlamaBackend, *, cores: int, threads: int | None, budget_s: float) -> WarmUp:
    """Decode dummy tokens; slots are empty afterwards. `threads` (the operator's choice) is not
    questioned."""
    rows = backend.limits.slots
    _step(backend, rows)
    if threads is None:
        threads, reason = _choose_threads(backend, rows, cores)
    else:
        reason = "as configured"
    backend.set_threads(threads)
    started = time.monotonic()
    times = _in_rounds(
        budget_s * _ROWS_SHARE,
        lambda count: _step(backend, count),
        _row_counts(rows),
        least=2,  # one row and all: between them the rest can be estimated
    )
    left_s = started + budget_s - time.monotonic()
    token_times = _in_rounds(
        left_s, lambda count: _row(backend, count), _token_counts(backend), least=1
    )
    return WarmUp(threads, reason, times, _copy_costs(backend), token_times)


def compute_full_batch(backend: LlamaBackend) -> None:
    """Have the drivers of GPUs take what the largest batch needs, so that it is measured with the
    load: their buffers grow with what they compute."""
    tokens = min(backend.limits.pass_tokens, backend.limits.slot_tokens)
    _fill(backend, tokens)
    backend.trim(0, 0)


def _in_rounds(
    budget_s: float, measure: Callable[[int], float], counts: Iterable[int], *, least: int
) -> dict[int, float]:
    """The least seconds by count, of as many counts as the budget has time for, at least the first
    `least`. Whatever else runs only adds to a step, and in rounds a busy moment is not one count's
    alone."""
    started = time.monotonic()
    times: dict[int, float] = {}
    for count in counts:
        times[count] = measure(count)
        if len(times) >= least and time.monotonic() > started + budget_s / _REPETITIONS:
            break
    for _ in range(_REPETITIONS - 1):
        for count, known in times.items():
            times[count] = min(known, measure(count))
    return times


def _choose_threads(backend: LlamaBackend, rows: int, cores: int) -> tuple[int, str]:
    if cores == 1:
        return 1, "one core"
    fewer = cores - 1

    def measure(count: int) -> float:
        backend.set_threads(count)
        _step(backend, rows)
        return _step(backend, rows)

    seconds = _in_rounds(0.0, measure, (fewer, cores), least=2)
    if seconds[fewer] < LONG_STEP_S:
        return fewer, f"a step takes {seconds[fewer] * 1e3:.1f} ms, and the frontends need a core"
    speedup = seconds[fewer] / seconds[cores]
    if speedup >= WORTHWHILE_SPEEDUP:
        return cores, f"{speedup:.2f}x faster than {fewer}"
    return fewer, f"{cores} are only {speedup:.2f}x as fast, and the frontends need a core"


def _copy_costs(backend: LlamaBackend) -> CopyCosts:
    """A stream copy is carried out by a decode, so it is measured as what it adds to one; a state
    is measured at two lengths."""
    if backend.limits.slots < 2:
        return CopyCosts()
    tokens = min(_COPIED_TOKENS, backend.limits.batch_tokens, backend.limits.slot_tokens // 2)
    few = max(tokens // 8, 1)
    states = {count: _state_copy(backend, count) for count in (few, tokens)}
    a_token = max(states[tokens] - states[few], 0.0) / max(tokens - few, 1)
    fixed = max(states[few] - few * a_token, 0.0)
    if backend.copies_by_state:
        return CopyCosts(0.0, fixed, a_token)
    copied = median(_stream_copy(backend) for _ in range(_REPETITIONS))
    plain = median(_step(backend, 1) for _ in range(_REPETITIONS))
    return CopyCosts(max(copied - plain, 0.0), fixed, a_token)


def _state_copy(backend: LlamaBackend, tokens: int) -> float:
    _fill(backend, tokens)
    seconds = []
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        backend.restore(1, backend.save(0))
        seconds.append(time.perf_counter() - started)
    _empty(backend)
    return median(seconds)


def _stream_copy(backend: LlamaBackend) -> float:
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
    """1, everything, powers of two, whole blocks, then the rest: the most telling first, should
    time run out."""
    first = [1, slots, *(2**i for i in range(1, slots.bit_length()) if 2**i < slots)]
    first += range(BLOCK, min(slots, _MOST_MEASURED) + 1, BLOCK)
    every = list(range(1, min(slots, _MOST_MEASURED) + 1))
    return list(dict.fromkeys(first + every))


def _token_counts(backend: LlamaBackend) -> list[int]:
    """Powers of two, as drafts make rows of them, up to what one step may draft."""
    limits = backend.limits
    if limits.output_rows == limits.slots or not backend.can_trim:
        return []
    most = min(limits.output_rows, limits.pass_tokens)
    return [2**i for i in range(most.bit_length())]


def _step(backend: LlamaBackend, rows: int) -> float:
    return _timed(backend, [Row(slot, 0, (0,), output=True) for slot in range(rows)])


def _row(backend: LlamaBackend, tokens: int) -> float:
    return _timed(backend, [Row(0, 0, (0,) * tokens, output=True, drafted=tokens - 1)])


def _timed(backend: LlamaBackend, rows: Sequence[Row]) -> float:
    batch = TokenBatch.of(rows)
    started = time.perf_counter()
    backend.decode(batch)
    seconds = time.perf_counter() - started
    for row in rows:
        backend.trim(row.slot, 0)
    return seconds
