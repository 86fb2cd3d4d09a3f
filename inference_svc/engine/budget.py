"""How many prompt tokens a step computes, and whose.

Every running sequence decodes in every step. What a step has left goes to prompts, as far as the
policy allows: it trades the time between two tokens against the time until a prompt is computed.
Urgent prompts come first and leave a part to the others; equals get equal chunks, so that sequences
that prefill together also share compute batches.
"""

import enum
from collections.abc import Sequence
from itertools import groupby

LEAST_CHUNK = 16
_BALANCED_FLOOR = 4  # at least this part of the cap; twice where prompts outnumber the others
_LEFT_TO_OTHERS = 8  # this part of a budget, where less urgent prompts wait


class Policy(enum.Enum):
    """What gives way when prompts arrive while others generate."""

    LATENCY_FIRST = "latency_first"
    BALANCED = "balanced"
    THROUGHPUT_FIRST = "throughput_first"


def prefill_budget(
    policy: Policy,
    *,
    left: int,
    cap: int,
    fitting: int | None,
    num_decoding: int,
    num_prompts: int,
) -> int:
    """The prompt tokens of one step: `left` are what the batch holds beside decoding rows, `cap`
    is the operator's bound, `fitting` what holds the target time between tokens (None where nobody
    decodes, or nothing is known yet). Balanced holds that unless prompts would crawl, the less the
    more of them there are: what decodes is a pass of its own in each step, which small chunks
    pay often."""
    fits = cap if fitting is None else fitting
    match policy:
        case Policy.LATENCY_FIRST:
            return min(left, cap, max(fits, LEAST_CHUNK))
        case Policy.BALANCED:
            outnumbering = min(max(num_prompts / max(num_decoding, 1), 1.0), 2.0)
            return min(left, cap, max(fits, int(cap * outnumbering) // _BALANCED_FLOOR))
        case Policy.THROUGHPUT_FIRST:
            return left


def urgent_chunks(remaining: Sequence[int], urgencies: Sequence[int], budget: int) -> list[int]:
    """Share `budget` among prompts: the most urgent first, fairly among equals. At most an eighth
    of what is there goes on to the less urgent, who would wait forever else; not more, though a
    short urgent prompt leaves it, because its first token waits for the whole step."""
    chunks = [0] * len(remaining)
    order = sorted(range(len(remaining)), key=lambda i: -urgencies[i])
    groups = [list(group) for _, group in groupby(order, key=lambda i: urgencies[i])]
    for rank, group in enumerate(groups):
        wanted_below = sum(remaining[i] for below in groups[rank + 1 :] for i in below)
        passed_on = min(budget // _LEFT_TO_OTHERS, wanted_below)
        shares = fair_chunks([remaining[i] for i in group], budget - passed_on)
        for i, share in zip(group, shares, strict=True):
            chunks[i] = share
        budget = passed_on
    return chunks


def fair_chunks(remaining: Sequence[int], budget: int) -> list[int]:
    """Share `budget` tokens among prompts with `remaining` tokens each: equally, what one leaves
    going to the others.

    A budget smaller than the number of prompts serves the first ones with one token each.
    """
    chunks = [0] * len(remaining)
    open_ = [i for i, tokens in enumerate(remaining) if tokens > 0]
    while open_ and budget > 0:
        share = max(budget // len(open_), 1)
        for i in open_:
            take = min(share, remaining[i] - chunks[i], budget)
            chunks[i] += take
            budget -= take
        open_ = [i for i in open_ if chunks[i] < remaining[i]]
    return chunks
