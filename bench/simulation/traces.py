"""Conversations of tenants, made from a seed.

The tenants have unequal shares (Zipf) and a system prompt each; a conversation goes on a while
after each answer. So the offered load does not depend on the policy, but its order does.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from bench.step_times import StepTimes


class Turn(NamedTuple):
    """What a turn adds to its conversation; it is sent `pause_s` after the answer before."""

    text_tokens: int
    output_tokens: int
    pause_s: float


class Conversation(NamedTuple):
    """`key` is that of its home; only the `system_tokens` are shared by those of a tenant."""

    number: int
    key: str
    tenant: int
    system_tokens: int
    starts_at: float
    turns: tuple[Turn, ...]

    def prompt_tokens(self, turn: int) -> int:
        before = sum(each.text_tokens + each.output_tokens for each in self.turns[:turn])
        return self.system_tokens + before + self.turns[turn].text_tokens


@dataclass(frozen=True)
class TraceShape:
    """Sizes are medians of log-normal distributions, except `turns` and `pause_s`, which are means.

    `long_share` of the turns add `long_tokens`; `crowd_share` of the conversations have the key of
    one session. Others have one of their own, or of their tenant.
    """

    name: str
    tenants_per_replica: float = 2.0
    skew: float = 1.1
    system_tokens: int = 1500
    text_tokens: int = 120
    long_tokens: int = 6000
    long_share: float = 0.1
    output_tokens: int = 150
    turns: int = 5
    pause_s: float = 5.0
    crowd_share: float = 0.0
    home_of: Literal["conversation", "tenant"] = "conversation"
    max_tokens: int = 32_000


def make_trace(
    shape: TraceShape,
    times: StepTimes,
    *,
    num_replicas: int,
    slots: int,
    load: float,
    seconds: float,
    seed: int,
) -> list[Conversation]:
    """Conversations whose first turns arrive by chance during about `seconds`, as many as use
    `load` of the replicas if all prefixes are found and all slots are in use."""
    rng = random.Random(seed)
    num_tenants = max(4, round(shape.tenants_per_replica * num_replicas))
    systems = [_size(rng, shape.system_tokens, 0.5) for _ in range(num_tenants)]
    shares = [*accumulate(1 / (rank + 1) ** shape.skew for rank in range(num_tenants))]
    budget_s = load * num_replicas * seconds
    trace: list[Conversation] = []
    while budget_s > 0:
        number = len(trace)
        tenant = rng.choices(range(num_tenants), cum_weights=shares)[0]
        key = f"{shape.home_of} {tenant if shape.home_of == 'tenant' else number}"
        if rng.random() < shape.crowd_share:
            key = "crowd"
        turns = _turns(rng, shape, systems[tenant])
        starts_at = rng.uniform(0, seconds)
        trace.append(Conversation(number, key, tenant, systems[tenant], starts_at, turns))
        for turn in turns:
            token_s = times.decode_s(slots) / slots
            budget_s -= times.prefill_s(turn.text_tokens) + token_s * turn.output_tokens
    return trace


def _turns(rng: random.Random, shape: TraceShape, system_tokens: int) -> tuple[Turn, ...]:
    """At least one turn, as many as fit into the context."""
    turns: list[Turn] = []
    left = shape.max_tokens - system_tokens
    while not turns or rng.random() > 1 / shape.turns:
        is_long = rng.random() < shape.long_share
        text = _size(rng, shape.long_tokens if is_long else shape.text_tokens, 0.8)
        turn = Turn(text, _size(rng, shape.output_tokens, 0.8), rng.expovariate(1 / shape.pause_s))
        left -= turn.text_tokens + turn.output_tokens
        if left < 0:
            break
        turns.append(turn)
    return tuple(turns) or (Turn(1, 1, 0.0),)


def _size(rng: random.Random, median: int, sigma: float) -> int:
    return max(1, round(rng.lognormvariate(math.log(median), sigma)))


def perfect_hit_rate(trace: Sequence[Conversation]) -> float:
    """The part of all prompt tokens that one unlimited cache of all replicas would have: each
    system prompt and each text is computed once."""
    systems = {each.tenant: each.system_tokens for each in trace}
    new = sum(systems.values()) + sum(turn.text_tokens for each in trace for turn in each.turns)
    return 1 - new / num_prompt_tokens(trace)


def num_prompt_tokens(trace: Sequence[Conversation]) -> int:
    return sum(each.prompt_tokens(turn) for each in trace for turn in range(len(each.turns)))
