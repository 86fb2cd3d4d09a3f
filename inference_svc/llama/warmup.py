"""Before SERVING: fault the weights in, choose the number of threads, and measure step time by
rows.

First steps are several times slower, compute threads that take every core starve the frontends, and
some row counts are slower than larger ones. So all three are measured here, on the real model, in a
bounded time.
"""

import time
from statistics import median
from typing import NamedTuple

from inference_svc.engine.token_batch import Row, TokenBatch
from inference_svc.llama.backend import LlamaBackend

# A last core is worth taking from the frontends only for a clearly faster step, and only where
# steps are long: in a short one the frontends' own work weighs as much, and compute threads that
# wait for a core at every barrier slow both down.
WORTHWHILE_SPEEDUP = 1.25
LONG_STEP_S = 0.02
_REPETITIONS = 3


class WarmUp(NamedTuple):
    """What was measured: threads to compute with, why, and seconds a step by number of one-token
    rows."""

    threads: int
    reason: str
    step_times: dict[int, float]


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
    deadline = time.monotonic() + budget_s
    times: dict[int, float] = {}
    for count in _row_counts(rows):
        times[count] = median(_step(backend, count) for _ in range(_REPETITIONS))
        if time.monotonic() > deadline:
            break
    return WarmUp(threads, reason, times)


def _choose_threads(backend: LlamaBackend, rows: int, cores: int) -> tuple[int, str]:
    if cores == 1:
        return 1, "one core"
    fewer = cores - 1
    seconds = {}
    for count in (fewer, cores):
        backend.set_threads(count)
        _step(backend, rows)
        seconds[count] = median(_step(backend, rows) for _ in range(_REPETITIONS))
    if seconds[fewer] < LONG_STEP_S:
        return fewer, f"a step takes {seconds[fewer] * 1e3:.1f} ms, and the frontends need a core"
    speedup = seconds[fewer] / seconds[cores]
    if speedup >= WORTHWHILE_SPEEDUP:
        return cores, f"{speedup:.2f}x faster than {fewer}"
    return fewer, f"{cores} are only {speedup:.2f}x as fast, and the frontends need a core"


def _row_counts(slots: int) -> list[int]:
    """1, everything, powers of two, then the rest: the most telling first, should time run out."""
    first = [1, slots, *(2**i for i in range(1, slots.bit_length()) if 2**i < slots)]
    every = list(range(1, min(slots, 32) + 1))
    return list(dict.fromkeys(first + every))


def _step(backend: LlamaBackend, rows: int) -> float:
    batch = TokenBatch.of([Row(slot, 0, (0,), output=True) for slot in range(rows)])
    started = time.perf_counter()
    backend.decode(batch)
    backend.synchronize()
    seconds = time.perf_counter() - started
    for slot in range(rows):
        backend.trim(slot, 0)
    return seconds
