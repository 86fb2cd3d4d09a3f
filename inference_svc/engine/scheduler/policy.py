"""How many prompt tokens a step computes, and of which sequences.

Every running sequence decodes in every step. Policies trade the time between two tokens against the
time to the first.
"""

import enum
from collections.abc import Sequence
from heapq import nlargest
from itertools import groupby, takewhile
from typing import NamedTuple

LEAST_CHUNK = 16
_BALANCED_FLOOR = 4
"""A chunk is at least this part of the cap. Two prompts that each fit it share a step: 48 prompts
of 128 tokens, sixteen at once, take 36.3 s instead of 38.1."""
_MOST_FLOORS = 3.0
"""The most floors of a chunk where prompts outnumber decoding rows, as each step pays for these."""
_LITTLE_MORE = 4
"""A prompt that ends within this part of a floor is computed to its end. Without it, prompts of 126
to 131 tokens took 6 % longer than of 128; half a floor made pauses of 384 tokens."""
_LEFT_TO_OTHERS = 8
"""The part of a budget left to less urgent prompts. With it in each step an urgent prompt of 32
tokens took 174 to 322 ms instead of 54, so they are passed over for up to `_PATIENCE_STEPS`."""
# llama.cpp's attention computes this many queries of a row at once and the rest one by one: a token
# of rows of 85 takes a fifth longer than one of rows of 64, and one of unequal rows a fourth.
_BLOCK = 64
_MOST_ENDING = 4  # prompts that share a step because all end in it, if they have a block or more
_PATIENCE_STEPS = 4  # for how long the less urgent wait for short urgent ones


class Policy(enum.Enum):
    """The trade-off between time per token and time to first token."""

    LATENCY_FIRST = "latency_first"
    BALANCED = "balanced"
    THROUGHPUT_FIRST = "throughput_first"


class PendingPrompt(NamedTuple):
    """What a prompt has left to compute, its class, in how many steps that was passed over, and its
    response ratio: how long it has waited for its length."""

    tokens: int
    effective_priority: int
    skipped_steps: int = 0
    ratio: float = 0.0


def prefill_budget(
    policy: Policy,
    prompts: Sequence[PendingPrompt],
    *,
    left: int,
    cap: int,
    fitting: int | None,
    num_decoding: int,
) -> int:
    """The prompt tokens of one step: `left` are what the batch holds beside decoding rows, `cap`
    is the operator's bound, `fitting` what holds the target time between tokens (None where nobody
    decodes, or nothing is known yet). Balanced holds that unless prompts would crawl, the less the
    more of them there are: what decodes is a pass of its own in each step, which small chunks
    pay often. Two short prompts are computed together, which takes less than one after the other,
    and none is cut shortly before its end, which would cost it a step.
    """
    fits = cap if fitting is None else fitting
    match policy:
        case Policy.LATENCY_FIRST:
            return min(left, cap, max(fits, LEAST_CHUNK))
        case Policy.BALANCED:
            floors = max(min(len(prompts) / max(num_decoding, 1), _MOST_FLOORS), 1.0)
            whole = _whole(prompts, cap // _BALANCED_FLOOR)
            return min(left, cap, max(fits, int(cap * floors) // _BALANCED_FLOOR, whole))
        case Policy.THROUGHPUT_FIRST:
            return left


def _whole(prompts: Sequence[PendingPrompt], floor: int) -> int:
    """What computes to their ends the next prompt, or the next two, that take little more than a
    floor each; 0 where a floor holds them all."""
    following = nlargest(2, prompts, key=lambda one: (one.effective_priority, one.ratio))
    most = floor + floor // _LITTLE_MORE
    short = list(takewhile(most.__ge__, (one.tokens for one in following)))
    return len(short) * max(floor, *short) if sum(short) > floor else 0


def urgent_chunks(prompts: Sequence[PendingPrompt], budget: int, *, steps: int = 1) -> list[int]:
    """Divide `budget` tokens among prompts: the highest priority first, fairly among equals. The
    operator's cap spans `steps` steps; `steps` also defines which prompts count as short.

    Lower priorities get at most an eighth, to avoid starvation: only beside higher-priority prompts
    that take more than a step, or after several steps without tokens, because the first token of a
    short high-priority prompt waits for everything that its step computes.
    """
    chunks = [0] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: -prompts[i].effective_priority)
    groups = [
        list(group) for _, group in groupby(order, key=lambda i: prompts[i].effective_priority)
    ]
    for rank, group in enumerate(groups):
        below = [[prompts[i] for i in later] for later in groups[rank + 1 :]]
        equals = [prompts[i] for i in group]
        wanted = sum(one.tokens for one in equals)
        passed_on = _passed_on(below, budget, beside=wanted, steps=steps)
        shares = fair_chunks(equals, budget - passed_on, steps=steps)
        for i, share in zip(group, shares, strict=True):
            chunks[i] = share
        if wanted:
            budget = passed_on
    return chunks


def _passed_on(
    below: Sequence[Sequence[PendingPrompt]], budget: int, *, beside: int, steps: int
) -> int:
    """What the less urgent classes get beside so many tokens: where one waited long enough,
    something."""
    part = min(steps * budget // _LEFT_TO_OTHERS, budget // 2)
    waited = max((one.skipped_steps for group in below for one in group), default=0)
    if waited >= _PATIENCE_STEPS:
        part = max(part, min(budget, 1))
    elif beside <= budget or waited < steps - 1:
        return 0
    return min(part, sum(one.tokens for group in below for one in group))


def fair_chunks(prompts: Sequence[PendingPrompt], budget: int, *, steps: int = 1) -> list[int]:
    """PendingPrompt `budget` tokens, one of so many `steps`, among equals.

    Whoever needs no more than an equal part of all steps gets what it needs. Of the others the one
    with the highest response ratio comes first, two or four of them where all end; the next has
    what they leave in whole blocks, if it goes on. A part of the budget may stay unused: odd rows
    take longer than they are worth.
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
        turn = budget // count
        for i in served:
            tokens = prompts[i].tokens
            chunks[i] = tokens if tokens <= turn else _in_blocks(turn)
            budget -= chunks[i]
        is_used = any(chunks[i] >= _BLOCK for i in served)
        if is_used and waiting and 2 * _BLOCK <= budget < prompts[waiting[0]].tokens:
            chunks[waiting[0]] = _in_blocks(budget)
    return chunks


def _num_ending(waiting: Sequence[int], budget: int) -> int:
    """How many prompts, of those that wait with so many tokens, are computed to their ends in this
    step; or 1. A power of two, which divides a pass into equal rows."""
    count = 1
    while 2 * count <= min(len(waiting), _MOST_ENDING):
        if max(waiting[: 2 * count]) > budget // (2 * count):
            break
        count *= 2
    return count


def _in_blocks(tokens: int) -> int:
    return tokens - tokens % _BLOCK if tokens >= 2 * _BLOCK else tokens
