"""How many prompt tokens a step computes, and whose.

Every running sequence decodes in every step. What a step has left goes to prompts, as far as the
policy allows: it trades the time between two tokens against the time until a prompt is computed.
Urgent prompts come first and leave a part to the others; of equals short ones are not held up, and
long ones take turns.
"""

import enum
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

LEAST_CHUNK = 16
_BALANCED_FLOOR = 4  # at least this part of the cap,
_MOST_FLOORS = 3.0  # and up to as many such parts where prompts outnumber who decodes
_LEFT_TO_OTHERS = 8  # this part of a budget, where less urgent prompts wait
_QUANTUM = 128  # tokens of a turn; chunks of half as many take 3 % longer a token
_PATIENCE_STEPS = 4  # for how long they wait for short urgent ones


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
            outnumbering = min(max(num_prompts / max(num_decoding, 1), 1.0), _MOST_FLOORS)
            return min(left, cap, max(fits, int(cap * outnumbering) // _BALANCED_FLOOR))
        case Policy.THROUGHPUT_FIRST:
            return left


class Share(NamedTuple):
    """What a prompt has left to compute, its class, and in how many steps it was passed over."""

    tokens: int
    urgency: int
    passed_over: int = 0


def urgent_chunks(prompts: Sequence[Share], budget: int) -> list[int]:
    """Share `budget` among prompts: the most urgent first, fairly among equals.

    The less urgent, who would wait forever else, get at most an eighth, and that only beside urgent
    prompts that take more than a step, or after some steps without: the first token of a short
    urgent prompt waits for everything that its step computes.
    """
    chunks = [0] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: -prompts[i].urgency)
    groups = [list(group) for _, group in groupby(order, key=lambda i: prompts[i].urgency)]
    for rank, group in enumerate(groups):
        below = [prompts[i] for later in groups[rank + 1 :] for i in later]
        equals = [prompts[i] for i in group]
        wanted = sum(one.tokens for one in equals)
        passed_on = _passed_on(below, budget, beside=wanted)
        for i, share in zip(group, fair_chunks(equals, budget - passed_on), strict=True):
            chunks[i] = share
        if wanted:
            budget = passed_on
    return chunks


def _passed_on(below: Sequence[Share], budget: int, *, beside: int) -> int:
    """What the less urgent get beside so many tokens: where they waited long enough, something."""
    part = budget // _LEFT_TO_OTHERS
    if any(one.passed_over >= _PATIENCE_STEPS for one in below):
        part = max(part, min(budget, 1))
    elif beside < budget:
        return 0
    return min(part, sum(one.tokens for one in below))


def fair_chunks(prompts: Sequence[Share], budget: int) -> list[int]:
    """Share `budget` tokens among equals.

    Whoever needs no more than an equal part gets what it needs: a short prompt does not wait behind
    long ones. The others take turns of some tokens (a round robin by quanta), who was passed over
    longest first: small chunks of many prompts take longer to compute than large ones of few, and
    nobody's first token would come before everybody's.
    """
    chunks = [0] * len(prompts)
    waiting = sorted(range(len(prompts)), key=lambda i: prompts[i].tokens)
    while waiting and prompts[waiting[0]].tokens <= budget // len(waiting):
        first = waiting.pop(0)
        chunks[first] = prompts[first].tokens
        budget -= chunks[first]
    waiting.sort(key=lambda i: (-prompts[i].passed_over, i))
    while waiting and budget > 0:
        for i in waiting:
            take = min(_QUANTUM, prompts[i].tokens - chunks[i], budget)
            chunks[i] += take
            budget -= take
        waiting = [i for i in waiting if chunks[i] < prompts[i].tokens]
    return chunks
