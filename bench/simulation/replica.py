"""A replica: slots, a queue, a prefix cache, and steps as `inference_svc/engine` makes them.

A step is a call of all decoding rows, then one of prompt tokens, as many as keep the target time
between tokens but at least a quarter of a chunk (`engine/scheduler/policy.py`). Of waiting prompts
the one with the highest response ratio is next; one whose system prompt another one computes waits
for it.
"""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from bench.simulation.traces import Conversation
from bench.step_times import StepTimes


@dataclass(frozen=True)
class ReplicaShape:
    """`cache_tokens` is the size of the prefix cache; the other defaults are those of the
    engine."""

    times: StepTimes
    slots: int = 16
    cache_tokens: int = 16 * 8192
    chunk_tokens: int = 512
    target_s: float = 0.1


@dataclass(slots=True, eq=False)
class Request:
    """A turn of a conversation on its way; times are those of the simulation."""

    conversation: Conversation
    turn: int
    arrived_at: float
    first_token_at: float | None = None
    num_output: int = 0
    num_computed: int = 0
    """Prompt tokens that were computed, repeated ones included."""
    num_refusals: int = 0
    num_moves: int = 0
    num_remaining: int | None = None
    """Prompt tokens to compute; None before the first one."""
    ends_at_step: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Those that the replica is sent: what was answered elsewhere is part of the prompt."""
        return self.conversation.prompt_tokens(self.turn) + self.num_output

    @property
    def output_tokens(self) -> int:
        return self.conversation.turns[self.turn].output_tokens


class PrefixCache:
    """The most recently used conversations, each with its system prompt."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tokens: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._tenants: Counter[int] = Counter()
        self._size = 0

    def has_system(self, tenant: int) -> bool:
        return self._tenants[tenant] > 0

    def match(self, request: Request) -> int:
        """The tokens of a prompt that need not be computed; the last one always is."""
        each = request.conversation
        _, tokens = self._tokens.get(each.number, (0, 0))
        if not tokens and self.has_system(each.tenant):
            tokens = each.system_tokens
        return min(tokens, request.prompt_tokens - 1)

    def store(self, conversation: Conversation, tokens: int) -> None:
        self._remove(conversation.number)
        self._tokens[conversation.number] = conversation.tenant, tokens
        self._tenants[conversation.tenant] += 1
        self._size += tokens
        while self._size > self._capacity and len(self._tokens) > 1:
            self._remove(next(iter(self._tokens)))

    def _remove(self, number: int) -> None:
        tenant, tokens = self._tokens.pop(number, (None, 0))
        if tenant is not None:
            self._tenants[tenant] -= 1
            self._size -= tokens


@dataclass(slots=True, eq=False)
class Replica:
    """`run_until` is the end of its running steps; None if it is idle. Whoever submits, or has come
    to that time, then asks again."""

    number: int
    shape: ReplicaShape
    is_up: bool = True
    run_until: float | None = None
    busy_s: float = 0.0
    waiting: deque[Request] = field(default_factory=deque)
    prompts: list[Request] = field(default_factory=list)
    decoding: list[Request] = field(default_factory=list)
    cache: PrefixCache = field(init=False)
    _num_steps: int = 0
    _started_at: float = 0.0
    _planned: tuple[int, float] = (0, 0.0)
    """Steps that run one after the other, and the seconds of each."""

    def __post_init__(self) -> None:
        self.cache = PrefixCache(self.shape.cache_tokens)

    @property
    def num_live(self) -> int:
        return len(self.waiting) + len(self.prompts) + len(self.decoding)

    @property
    def load(self) -> float:
        """As it is reported to balancers: sequences by slots."""
        return self.num_live / self.shape.slots

    def submit(self, request: Request, now: float) -> None:
        request.num_remaining = None
        self.waiting.append(request)
        if self.run_until is None:
            self._begin(now)
        elif self._has_slot and self._planned[0] > 1:  # it joins after the running step
            step_s = self._planned[1]
            num_begun = min(int((now - self._started_at) / step_s) + 1, self._planned[0])
            self._planned = num_begun, step_s
            self.run_until = self._started_at + num_begun * step_s

    def advance(self, now: float) -> list[Request]:
        """End the steps that run until now, and begin others. Return what has ended."""
        num_steps, step_s = self._planned
        self.busy_s += num_steps * step_s
        self._num_steps += num_steps
        ended = [each for each in self.decoding if each.ends_at_step <= self._num_steps]
        self.decoding = [each for each in self.decoding if each.ends_at_step > self._num_steps]
        for request in [each for each in self.prompts if each.num_remaining == 0]:
            self.prompts.remove(request)
            if request.first_token_at is None:
                request.first_token_at = now
            request.ends_at_step = self._num_steps + request.output_tokens - request.num_output - 1
            (self.decoding if request.ends_at_step > self._num_steps else ended).append(request)
        for request in ended:
            request.num_output = request.output_tokens
            self.cache.store(request.conversation, request.prompt_tokens)
        self._begin(now)
        return ended

    def fail(self, now: float) -> list[Request]:
        """Lose everything. Return the requests, with the tokens that were sent."""
        if self.run_until is not None:
            num_steps = int((now - self._started_at) / self._planned[1])
            self._num_steps += min(num_steps, self._planned[0] - 1)
        for request in self.decoding:
            request.num_output = request.output_tokens - (request.ends_at_step - self._num_steps)
        lost = [*self.waiting, *self.prompts, *self.decoding]
        self.waiting.clear()
        self.prompts, self.decoding = [], []
        self.cache = PrefixCache(self.shape.cache_tokens)
        self.is_up, self.run_until = False, None
        return lost

    @property
    def _has_slot(self) -> bool:
        return len(self.prompts) + len(self.decoding) < self.shape.slots

    def _begin(self, now: float) -> None:
        while self.waiting and self._has_slot:
            self.prompts.append(self.waiting.popleft())
        times, rows = self.shape.times, len(self.decoding)
        self._started_at = now
        if self.prompts:
            num_tokens = self._compute_prompts(now, rows)
            self._planned = 1, times.decode_s(rows) + times.prefill_s(num_tokens)
        elif rows:
            num_steps = min(each.ends_at_step for each in self.decoding) - self._num_steps
            self._planned = num_steps, times.decode_s(rows)
        else:
            self._planned = 0, 0.0
            self.run_until = None
            return
        self.run_until = now + self._planned[0] * self._planned[1]

    def _compute_prompts(self, now: float, rows: int) -> int:
        """Compute the chunks of a step. Return their tokens."""
        budget = left = self._budget(rows)
        computed = {
            each.conversation.tenant for each in self.prompts if each.num_remaining is not None
        }
        for request in sorted(self.prompts, key=lambda each: -self._ratio(each, now)):
            tenant = request.conversation.tenant
            if request.num_remaining is None:
                if tenant in computed and not self.cache.has_system(tenant):
                    continue
                computed.add(tenant)
                request.num_remaining = request.prompt_tokens - self.cache.match(request)
            chunk = min(left, request.num_remaining)
            request.num_remaining -= chunk
            request.num_computed += chunk
            if not request.num_remaining:
                self.cache.store(request.conversation, request.prompt_tokens)
            left -= chunk
            if not left:
                break
        return budget - left

    def _budget(self, rows: int) -> int:
        cap, times = self.shape.chunk_tokens, self.shape.times
        if not rows:
            return cap
        left_s = self.shape.target_s - times.decode_s(rows) - times.call_s
        fitting = int(left_s / times.token_s) if times.token_s else cap
        floors = min(max(len(self.prompts) / rows, 1.0), 3.0)
        return min(cap, max(int(cap * floors) // 4, fitting))

    def _ratio(self, request: Request, now: float) -> float:
        """The response ratio of a prompt: seconds of waiting for each token to compute."""
        tokens = request.num_remaining or request.prompt_tokens - self.cache.match(request)
        return (now - request.arrived_at) / tokens
