"""Lets sequences wait for a prefix that another sequence is computing, instead of computing it
again.
"""

from collections.abc import Collection, Container
from typing import NamedTuple

from inference_svc.engine.cost_model.step_time import StepTimeModel
from inference_svc.engine.kv_cache.allocator import MIN_REUSED_TOKENS
from inference_svc.engine.sequence import PrefixWait, Sequence
from inference_svc.engine.slots import common_prefix

_PATIENCE = 2.0  # the estimate is by what prompts took so far; tokens of longer ones take longer


class _WaitingSequence(NamedTuple):
    follower: Sequence
    leader: Sequence
    shared: int

    def is_valid(self, waiting: Container[int]) -> bool:
        """Whether the one still waits and the other still computes what it waits for."""
        waits = self.follower.request.sequence_id in waiting and not self.follower.paused
        return waits and self.leader.slot is not None and _may_lead(self.leader)


class PrefixWaiters:
    """Decides, whenever a sequence's turn comes in an admission pass, whom it holds back for."""

    def __init__(self, step_time: StepTimeModel, *, can_trim: bool) -> None:
        self._step_time = step_time
        # Where states cannot be shortened, a leader's is past the common prefix when it is done.
        self._is_on = can_trim
        self._following: dict[int, _WaitingSequence] = {}

    @property
    def num_waiting_for_prefix(self) -> int:
        """How many hold back."""
        return len(self._following)

    def begin_pass(
        self, running: Collection[Sequence], waiting: Container[int], now: float
    ) -> None:
        """A new pass: leaders are as urgent as those who still follow them, be their turn in this
        pass to come or not; `waiting` are the ids of those without a slot."""
        for sequence in running:
            sequence.clear_inherited()
        self._following = {
            key: pair for key, pair in self._following.items() if pair.is_valid(waiting)
        }
        for pair in self._following.values():
            _lend(pair, now)

    def should_wait(
        self, sequence: Sequence, have: int, running: Collection[Sequence], now: float
    ) -> bool:
        """Whether to wait: somebody computes clearly more of the prompt than the `have` tokens
        that could be used at once."""
        self._following.pop(sequence.request.sequence_id, None)
        if not self._is_on or not sequence.request.reuse or sequence.saved_prefix is not None:
            return False
        leader, shared = self._leader(sequence, running)
        if leader is None or shared - have < MIN_REUSED_TOKENS:
            return False
        if not self._may_wait(sequence, have, running, now):
            return False
        pair = self._following[sequence.request.sequence_id] = _WaitingSequence(
            sequence, leader, shared
        )
        _lend(pair, now)
        return True

    def _leader(
        self, sequence: Sequence, running: Collection[Sequence]
    ) -> tuple[Sequence | None, int]:
        """The running sequence that will have most of the prompt, and how much."""
        best, most = None, 0
        limit = len(sequence.tokens) - 1
        for other in running:
            if not _may_lead(other) or not _may_share(sequence, other):
                continue
            shared = common_prefix(other.tokens, sequence.tokens, limit=limit)
            if shared > max(most, other.num_computed):
                best, most = other, shared
        return best, most

    def _may_wait(
        self, sequence: Sequence, have: int, running: Collection[Sequence], now: float
    ) -> bool:
        """Whether the time that the wait may take is not over. All prompts that run may come before
        the leader; the time begins anew whenever they, or what is there of the prefix, are more
        than when it was set."""
        to_compute = sum(other.num_remaining for other in running if not other.is_decoding)
        hold = sequence.prefix_wait
        if hold is None or have > hold.have or to_compute > hold.to_compute:
            stacks = len({other.request.adapters for other in running})  # they take turns
            estimate = self._step_time.prefill_s(to_compute) * stacks
            if not estimate:
                return True
            hold = sequence.prefix_wait = PrefixWait(now + _PATIENCE * estimate, have, to_compute)
        return now <= hold.until


def _may_share(one: Sequence, other: Sequence) -> bool:
    return other.request.reuse and one.request.cache_key == other.request.cache_key


def _may_lead(sequence: Sequence) -> bool:
    return not sequence.paused and not sequence.is_decoding


def _lend(pair: _WaitingSequence, now: float) -> None:
    follower, leader, shared = pair
    leader.inherited_priority = max(leader.inherited_priority, follower.effective_priority)
    if leader.num_computed < shared:  # else the follower waits for a slot
        leader.inherited_ratio = max(leader.inherited_ratio, follower.response_ratio(now))
