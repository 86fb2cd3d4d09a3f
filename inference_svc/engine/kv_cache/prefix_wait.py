"""Lets sequences wait for a prefix that another sequence is computing, instead of computing it
again.
"""

from collections.abc import Container, Mapping
from typing import NamedTuple

from inference_svc.engine.cost_model.step_time import StepTimeModel
from inference_svc.engine.kv_cache.allocator import MIN_REUSED_TOKENS
from inference_svc.engine.sequence import PrefixWait, Sequence
from inference_svc.engine.slots import common_prefix

_PATIENCE = 2.0
"""Factor on the estimated time of a wait. Tokens of long prompts take longer than the estimate."""


class _WaitingSequence(NamedTuple):
    follower: Sequence
    leader: Sequence
    shared: int

    def is_valid(self, waiting: Container[int]) -> bool:
        """Whether the follower still waits and the leader still computes the prefix."""
        is_waiting = self.follower.request.sequence_id in waiting and not self.follower.paused
        return is_waiting and self.leader.slot is not None and _may_lead(self.leader)


class PrefixWaiters:
    """Decides in each admission pass whether a sequence waits for the prefix of another one."""

    def __init__(
        self, running: Mapping[int, Sequence], step_time: StepTimeModel, *, can_trim: bool
    ) -> None:
        self._running = running
        self._step_time = step_time
        self._now = 0.0
        # Without truncation, the leader's final state is longer than the prefix and unusable.
        self._is_enabled = can_trim
        self._following: dict[int, _WaitingSequence] = {}
        self._raised: list[Sequence] = []  # leaders with an inherited priority

    @property
    def num_waiting_for_prefix(self) -> int:
        """How many sequences wait for a prefix."""
        return len(self._following)

    def begin_pass(self, waiting: Container[int], now: float) -> None:
        """Begin an admission pass: leaders inherit the priority of their followers.

        `waiting` has the ids of the sequences without a slot.
        """
        self._now = now
        for leader in self._raised:
            leader.clear_inherited()
        self._raised.clear()
        self._following = {
            key: pair for key, pair in self._following.items() if pair.is_valid(waiting)
        }
        for pair in self._following.values():
            self._raise_leader(pair)

    def should_wait(self, sequence: Sequence, num_cached: int) -> bool:
        """Whether to wait because a running sequence computes more of the prompt.

        `num_cached` tokens of the prompt are cached already.
        """
        self._following.pop(sequence.request.sequence_id, None)
        if not self._is_enabled or sequence.saved_prefix is not None:
            return False
        if not sequence.request.may_start_cached:
            return False
        leader, shared = self._leader(sequence)
        if leader is None or shared - num_cached < MIN_REUSED_TOKENS:
            return False
        if not self._may_wait(sequence, num_cached):
            return False
        pair = self._following[sequence.request.sequence_id] = _WaitingSequence(
            sequence, leader, shared
        )
        self._raise_leader(pair)
        return True

    def _raise_leader(self, pair: _WaitingSequence) -> None:
        """Let the leader inherit the priority and response ratio of the follower."""
        follower, leader, shared = pair
        self._raised.append(leader)
        leader.inherited_priority = max(leader.inherited_priority, follower.effective_priority)
        if leader.num_computed < shared:  # else the follower waits for a slot
            ratio = follower.response_ratio(self._now)
            leader.inherited_ratio = max(leader.inherited_ratio, ratio)

    def _leader(self, sequence: Sequence) -> tuple[Sequence | None, int]:
        """Return the running sequence with the longest common prefix, and its length."""
        best, best_length = None, 0
        limit = len(sequence.tokens) - 1
        for other in self._running.values():
            if not _may_lead(other) or not _may_share(sequence, other):
                continue
            equal = common_prefix(other.tokens, sequence.tokens, limit=limit)
            shared = sequence.whole_prefix(equal)
            if shared > max(best_length, other.num_computed):
                best, best_length = other, shared
        return best, best_length

    def _may_wait(self, sequence: Sequence, num_cached: int) -> bool:
        """Whether the time limit of the wait has not passed.

        All running prompts may be computed before the leader's. The limit is renewed when more
        tokens of the prefix are cached, or more tokens of prompts are to compute.
        """
        running = self._running.values()
        to_compute = sum(other.num_remaining for other in running if not other.is_decoding)
        wait = sequence.prefix_wait
        if wait is None or num_cached > wait.num_cached or to_compute > wait.to_compute:
            stacks = len({other.request.adapters for other in running})  # computed in turn
            estimate = self._step_time.prefill_s(to_compute) * stacks
            if not estimate:
                return True
            deadline = self._now + _PATIENCE * estimate
            wait = sequence.prefix_wait = PrefixWait(deadline, num_cached, to_compute)
        return self._now <= wait.deadline


def _may_share(one: Sequence, other: Sequence) -> bool:
    return other.request.reuse and one.request.cache_key == other.request.cache_key


def _may_lead(sequence: Sequence) -> bool:
    return not sequence.paused and not sequence.is_decoding
