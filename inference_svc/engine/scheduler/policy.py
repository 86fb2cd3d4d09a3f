"""Chunked prefill: how many prompt tokens a step computes, and of which sequences.

Every running sequence decodes in every step. Policies trade the time between two tokens (TPOT)
against the time to the first token (TTFT).
"""

import enum
from collections.abc import Sequence
from heapq import nlargest
from itertools import groupby, takewhile
from typing import NamedTuple

MIN_CHUNK = 16
_FLOOR_DIVISOR = 4
"""The floor, the minimum of a chunk under `BALANCED`, is this fraction of the cap. Two prompts that
each fit into the floor share a step: 48 prompts of 128 tokens, 16 at a time, take 36.3 s instead of
38.1 s."""
_MAX_FLOORS = 3.0
"""Maximum number of floors in a chunk if there are more prompts than decoding rows: every step also
computes the decoding rows, so fewer and larger chunks cost less."""
_OVERRUN_DIVISOR = 4
"""A prompt that exceeds the floor by at most this fraction of it is computed to its end. Without
this, prompts of 126 to 131 tokens took 6 % longer on average than prompts of 128. With 2 instead
of 4, chunks of 384 tokens delayed the decoding rows."""
_LOW_PRIORITY_DIVISOR = 8
"""Fraction of the budget for prompts of lower priority. If they had it in every step, a
high-priority prompt of 32 tokens would take 174 to 322 ms instead of 54, so they are skipped for up
to `_MAX_SKIPPED_STEPS` steps."""
# llama.cpp's attention computes this many queries of a row at once and the rest one by one: a token
# takes 20 % longer in rows of 85 tokens than in rows of 64, and 25 % longer in unequal rows.
_BLOCK = 64
_MAX_ENDING = 4  # prompts of at least a block that share a step because all of them end in it
_MAX_SKIPPED_STEPS = 4  # of low-priority prompts, while short high-priority ones are computed


class Policy(enum.Enum):
    """The trade-off between time per token and time to first token."""

    LATENCY_FIRST = "latency_first"
    BALANCED = "balanced"
    THROUGHPUT_FIRST = "throughput_first"


class PendingPrompt(NamedTuple):
    """The uncomputed part of a prompt, with what decides its order."""

    tokens: int
    effective_priority: int
    skipped_steps: int = 0
    """Steps in which no prompt of its priority class was computed."""
    ratio: float = 0.0
    """Response ratio: seconds of waiting per token to compute."""


def prefill_budget(
    policy: Policy,
    prompts: Sequence[PendingPrompt],
    *,
    available: int,
    cap: int,
    fitting: int | None,
    num_decoding: int,
) -> int:
    """The number of prompt tokens to compute in one step.

    `available` is the free part of the batch, `cap` the configured limit, and `fitting` the tokens
    that keep the target time between tokens (None if no sequence decodes or nothing is measured).

    `BALANCED` keeps the target unless chunks would become smaller than the floor. The floor grows
    with the number of prompts per decoding row, since every step also decodes. Two short prompts
    are computed together, which takes less time than one after the other. A prompt is not cut
    shortly before its end, which would cost it another step.
    """
    fits = cap if fitting is None else fitting
    match policy:
        case Policy.LATENCY_FIRST:
            return min(available, cap, max(fits, MIN_CHUNK))
        case Policy.BALANCED:
            floors = max(min(len(prompts) / max(num_decoding, 1), _MAX_FLOORS), 1.0)
            whole = _whole_prompts(prompts, cap // _FLOOR_DIVISOR)
            return min(available, cap, max(fits, int(cap * floors) // _FLOOR_DIVISOR, whole))
        case Policy.THROUGHPUT_FIRST:
            return available


def _whole_prompts(prompts: Sequence[PendingPrompt], floor: int) -> int:
    """The tokens to complete the next one or two prompts, each of which exceeds the floor slightly
    at most; 0 if one floor holds them."""
    candidates = nlargest(2, prompts, key=lambda prompt: (prompt.effective_priority, prompt.ratio))
    limit = floor + floor // _OVERRUN_DIVISOR
    short = list(takewhile(limit.__ge__, (prompt.tokens for prompt in candidates)))
    return len(short) * max(floor, *short) if sum(short) > floor else 0


def priority_chunks(prompts: Sequence[PendingPrompt], budget: int, *, steps: int = 1) -> list[int]:
    """Divide `budget` tokens among prompts: highest priority first, fairly within a class.

    `steps` is the number of steps that the configured cap spans; a prompt that fits into its share
    of them is short. To avoid starvation, lower priorities get up to 1/8 of the budget, but only
    beside higher-priority prompts that take more than one step, or after several skipped steps: the
    first token of a short high-priority prompt waits for everything that its step computes.
    """
    chunks = [0] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: -prompts[i].effective_priority)
    groups = [
        list(group) for _, group in groupby(order, key=lambda i: prompts[i].effective_priority)
    ]
    for rank, group in enumerate(groups):
        below = [[prompts[i] for i in later] for later in groups[rank + 1 :]]
        equals = [prompts[i] for i in group]
        wanted = sum(prompt.tokens for prompt in equals)
        reserved = _reserve_for_lower(below, budget, wanted=wanted, steps=steps)
        shares = fair_chunks(equals, budget - reserved, steps=steps)
        for i, share in zip(group, shares, strict=True):
            chunks[i] = share
        if wanted:
            budget = reserved
    return chunks


def _reserve_for_lower(
    below: Sequence[Sequence[PendingPrompt]], budget: int, *, wanted: int, steps: int
) -> int:
    """The tokens of a budget for lower priorities, beside `wanted` tokens of this one. At least one
    if a lower class was skipped often enough."""
    part = min(steps * budget // _LOW_PRIORITY_DIVISOR, budget // 2)
    skipped = max((prompt.skipped_steps for group in below for prompt in group), default=0)
    if skipped >= _MAX_SKIPPED_STEPS:
        part = max(part, min(budget, 1))
    elif wanted <= budget or skipped < steps - 1:
        return 0
    return min(part, sum(prompt.tokens for group in below for prompt in group))


def fair_chunks(prompts: Sequence[PendingPrompt], budget: int, *, steps: int = 1) -> list[int]:
    """Divide the `budget` tokens of one of `steps` steps among prompts of equal priority.

    Prompts that need at most an equal share of all steps are completed. Of the others, the one with
    the highest response ratio comes first, or the first two or four if all of them end in this
    step. The next one gets whole blocks of the remaining budget, unless they would complete it.
    Part of the budget may stay unused, since incomplete blocks take longer than they are worth.
    """
    chunks = [0] * len(prompts)
    waiting = sorted(range(len(prompts)), key=lambda i: prompts[i].tokens)
    while waiting and prompts[waiting[0]].tokens <= min(budget, steps * budget // len(waiting)):
        first = waiting.pop(0)
        chunks[first] = prompts[first].tokens
        budget -= chunks[first]
    waiting.sort(key=lambda i: -prompts[i].ratio)
    is_used = False
    while waiting and budget > 0 and not is_used:
        count = _num_ending([prompts[i].tokens for i in waiting], budget)
        served, waiting = waiting[:count], waiting[count:]
        share = budget // count
        for i in served:
            tokens = prompts[i].tokens
            chunks[i] = tokens if tokens <= share else _whole_blocks(share)
            budget -= chunks[i]
        is_used = any(chunks[i] >= _BLOCK for i in served)
        if is_used and waiting and 2 * _BLOCK <= budget < prompts[waiting[0]].tokens:
            chunks[waiting[0]] = _whole_blocks(budget)
    return chunks


def _num_ending(waiting: Sequence[int], budget: int) -> int:
    """How many of the first prompts can be completed in this step: 1, 2 or 4; 1 even if it cannot.

    A power of two divides a micro-batch into equal rows. `waiting` are the tokens of each prompt.
    """
    count = 1
    while 2 * count <= min(len(waiting), _MAX_ENDING):
        if max(waiting[: 2 * count]) > budget // (2 * count):
            break
        count *= 2
    return count


def _whole_blocks(tokens: int) -> int:
    return tokens - tokens % _BLOCK if tokens >= 2 * _BLOCK else tokens
