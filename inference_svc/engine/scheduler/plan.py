"""Plans one decode call: pure functions from running sequences to rows.

Every decoding sequence gets a row of one token and what a constraint forces behind it; prompts get
chunks; idle slots are filled where that makes the call faster.
"""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from inference_svc.engine.batch import Row
from inference_svc.engine.cost_model.step_time import StepTimeModel
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.scheduler.policy import (
    PendingPrompt,
    Policy,
    prefill_budget,
    urgent_chunks,
)
from inference_svc.engine.sequence import Plan, Sequence, Work
from inference_svc.engine.slots import Slot


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Bounds of a plan, in tokens, of which `pass_tokens` are computed at once; and the time
    between two tokens that `policy` may hold, in seconds."""

    batch_tokens: int
    pass_tokens: int
    chunk_cap: int
    slot_tokens: int
    policy: Policy = Policy.BALANCED
    token_target_s: float = 0.1


def plan_decode(
    sequences: SequenceOf[Sequence],
    slots: SequenceOf[Slot],
    limits: PlanLimits,
    layout: BatchLayout,
) -> Plan:
    """Plan the call of decoding sequences; at least one, each with a slot."""
    longest = max(limits.batch_tokens // len(sequences), 1)
    work = _in_slot_order(
        Work(sequence, _row(sequence, min(sequence.num_remaining, longest)))
        for sequence in sequences
    )
    forced = sum(len(item.row.tokens) for item in work) - len(work)
    fillers = _fillers(work, slots, limits, layout)
    rows = [item.row for item in work]
    if fillers:
        # With logits, for the head of the model has blocks of rows too.
        rows += [Row(slot.index, len(slot.tokens), (0,), output=True) for slot in fillers]
        rows.sort(key=lambda row: row.slot)
    return Plan(tuple(rows), work, fillers, len(work), forced)


def plan_prefill(
    sequences: SequenceOf[Sequence],
    num_decoding: int,
    limits: PlanLimits,
    step_time: StepTimeModel,
    now: float,
) -> tuple[Plan, ...]:
    """A call for the prompts that end and one for those that go on, without those that compute
    nothing: the rows of the latter are equally long, which divides a pass evenly. All have a slot
    and `num_decoding` others wait for them; `now` is on the engine's clock."""
    chunks = _chunks(sequences, num_decoding, limits, step_time, now)
    work = _in_slot_order(
        Work(sequence, _row(sequence, chunk))
        for sequence, chunk in zip(sequences, chunks, strict=True)
        if chunk
    )
    groups = ([item for item in work if item.row.output is ends] for ends in (True, False))
    return tuple(_prompts(group) for group in groups if group)


def without_ended(plan: Plan) -> Plan | None:
    """A call for prompts as it was planned, but for sequences that have ended since; None where all
    have."""
    left = [item for item in plan.work if item.sequence.slot is not None]
    return _prompts(left) if left else None


def _prompts(work: SequenceOf[Work]) -> Plan:
    tokens = sum(len(item.row.tokens) for item in work)
    return Plan(tuple(item.row for item in work), tuple(work), prompt_tokens=tokens)


def _in_slot_order(work: Iterable[Work]) -> tuple[Work, ...]:
    return tuple(sorted(work, key=lambda item: item.row.slot))


def _chunks(
    prefilling: SequenceOf[Sequence],
    num_decoding: int,
    limits: PlanLimits,
    step_time: StepTimeModel,
    now: float,
) -> list[int]:
    fitting, cap = None, min(limits.chunk_cap, limits.pass_tokens)
    if num_decoding:  # whose pass each step pays for
        cap = limits.chunk_cap
        fitting = step_time.prompt_tokens_within(limits.token_target_s, num_decoding=num_decoding)
    prompts = [_share(sequence, now) for sequence in prefilling]
    budget = prefill_budget(
        limits.policy,
        prompts,
        left=limits.batch_tokens,
        cap=cap,
        fitting=fitting,
        num_decoding=num_decoding,
    )
    steps = 1 if num_decoding else max(limits.chunk_cap // max(budget, 1), 1)
    return urgent_chunks(prompts, budget, steps=steps)


def _share(sequence: Sequence, now: float) -> PendingPrompt:
    ratio = max(sequence.response_ratio(now), sequence.inherited_ratio)
    return PendingPrompt(
        sequence.num_computable, sequence.effective_priority, sequence.skipped_steps, ratio
    )


def _row(sequence: Sequence, count: int) -> Row:
    start, slot = sequence.num_computed, sequence.slot
    if slot is None:
        raise ValueError(f"sequence {sequence.request.sequence_id} runs without a slot")
    tokens = sequence.tokens[start : start + count]
    return Row(slot.index, start, tokens, output=start + count == len(sequence.tokens))


def _fillers(
    work: SequenceOf[Work], slots: SequenceOf[Slot], limits: PlanLimits, layout: BatchLayout
) -> tuple[Slot, ...]:
    used = [item.row.slot for item in work]
    if not used or len(used) == len(slots):
        return ()
    busy = frozenset(used)
    fillable = [
        slot.index
        for slot in slots
        if slot.index not in busy and len(slot.tokens) < limits.slot_tokens
    ]
    room = limits.batch_tokens - sum(len(item.row.tokens) for item in work)
    return tuple(slots[index] for index in layout.fillers(used, fillable)[: max(room, 0)])
