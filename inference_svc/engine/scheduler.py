"""What the next step computes: a pure function from the running sequences to rows.

All decoding sequences get a row each, of one token and what a constraint forced behind it; prompts
share the rest of the budget; then idle slots are filled where that makes the step cheaper.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import NamedTuple

from inference_svc.engine.budget import Policy, prefill_budget, urgent_chunks
from inference_svc.engine.pacing import StepCost
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.shape import StepShape
from inference_svc.engine.slots import Slot
from inference_svc.engine.token_batch import Row


class Work(NamedTuple):
    """The part of a plan that belongs to one sequence."""

    sequence: Sequence
    row: Row


@dataclass(frozen=True, slots=True)
class Plan:
    """One decode call: `rows` in slot order, the `work` they do, and the slots that only fill
    holes; `num_decoding` of the rows continue a text by a token, `prompt_tokens` are all others,
    those that constraints forced among them."""

    rows: tuple[Row, ...]
    work: tuple[Work, ...]
    fillers: tuple[Slot, ...]
    num_decoding: int
    prompt_tokens: int

    @property
    def has_holes(self) -> bool:
        """Whether slots between its sequences do no work."""
        return self.work[-1].row.slot - self.work[0].row.slot >= len(self.work)


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Bounds of a plan, in tokens; and the time between two tokens that `policy` may hold, in
    seconds."""

    batch_tokens: int
    chunk_cap: int
    slot_tokens: int
    policy: Policy = Policy.BALANCED
    token_target_s: float = 0.1


def plan_step(
    running: SequenceOf[Sequence],
    slots: SequenceOf[Slot],
    limits: PlanLimits,
    shape: StepShape,
    cost: StepCost,
) -> Plan | None:
    """The next step for `running` sequences (each with a slot, none paused or stalled); None when
    there is nothing to do."""
    if not running:
        return None
    decoding = [sequence for sequence in running if sequence.is_decoding]
    prefilling = [sequence for sequence in running if not sequence.is_decoding]
    prefilling.sort(key=lambda sequence: sequence.due)
    longest = max(limits.batch_tokens // max(len(decoding), 1), 1)
    work = [
        Work(sequence, _row(sequence, min(sequence.num_remaining, longest)))
        for sequence in decoding
    ]
    forced = sum(len(item.row.tokens) for item in work) - len(work)
    chunks = _chunks(prefilling, len(decoding), forced, limits, cost)
    work += [
        Work(sequence, _row(sequence, chunk))
        for sequence, chunk in zip(prefilling, chunks, strict=True)
        if chunk
    ]
    if not work:
        return None
    work.sort(key=lambda item: item.row.slot)
    fillers = _fillers(work, slots, limits, shape)
    if not fillers:
        return Plan(
            tuple(item.row for item in work), tuple(work), (), len(decoding), sum(chunks) + forced
        )
    rows = [item.row for item in work]
    rows += [Row(slot.index, len(slot.tokens), (0,), output=False) for slot in fillers]
    rows.sort(key=lambda row: row.slot)
    return Plan(tuple(rows), tuple(work), fillers, len(decoding), sum(chunks) + forced)


def _chunks(
    prefilling: SequenceOf[Sequence],
    num_decoding: int,
    forced: int,
    limits: PlanLimits,
    cost: StepCost,
) -> list[int]:
    fitting = None
    if num_decoding:
        fitting = cost.prompt_tokens_within(limits.token_target_s, num_decoding=num_decoding)
    budget = prefill_budget(
        limits.policy,
        left=limits.batch_tokens - num_decoding - forced,
        cap=limits.chunk_cap,
        fitting=fitting,
        num_decoding=num_decoding,
        num_prompts=len(prefilling),
    )
    return urgent_chunks(
        [sequence.num_computable for sequence in prefilling],
        [sequence.urgency for sequence in prefilling],
        budget,
    )


def _row(sequence: Sequence, count: int) -> Row:
    start, slot = sequence.num_computed, sequence.slot
    if slot is None:
        raise ValueError(f"sequence {sequence.request.sequence_id} runs without a slot")
    tokens = sequence.tokens[start : start + count]
    return Row(slot.index, start, tokens, output=start + count == len(sequence.tokens))


def _fillers(
    work: SequenceOf[Work], slots: SequenceOf[Slot], limits: PlanLimits, shape: StepShape
) -> tuple[Slot, ...]:
    used = [item.row.slot for item in work]
    if len(used) == len(slots):
        return ()
    busy = frozenset(used)
    fillable = [
        slot.index
        for slot in slots
        if slot.index not in busy and len(slot.tokens) < limits.slot_tokens
    ]
    room = limits.batch_tokens - sum(len(item.row.tokens) for item in work)
    return tuple(slots[index] for index in shape.fillers(used, fillable)[: max(room, 0)])
