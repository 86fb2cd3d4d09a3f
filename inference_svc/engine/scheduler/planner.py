"""Plans the decode calls of a step: fits them into the KV cache, defragments slots, adds drafts."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf

from inference_svc.engine.defrag.batch_layout import NO_FILLERS, BatchLayout
from inference_svc.engine.defrag.compactor import Compactor, SlotMover
from inference_svc.engine.engine_parts import EngineParts
from inference_svc.engine.scheduler.admission import Admission
from inference_svc.engine.scheduler.plan import plan_decode, plan_prefill, without_ended
from inference_svc.engine.sequence import Plan, Sequence


class Planner:
    """Plans decode calls for sequences that have slots, by the times that earlier ones took."""

    def __init__(self, state: EngineParts, admission: Admission) -> None:
        mover = SlotMover(state.backend, state.copier, state.table, state.allocator)
        slot_tokens = state.backend.limits.slot_tokens
        self.compactor = Compactor(state.table, mover, state.layout, slot_tokens)
        self._state = state
        self._admission = admission

    def decode_plan(
        self, sequences: SequenceOf[Sequence], *, beside_prompts: bool, others_wait: bool
    ) -> Plan | None:
        """Plan the call of the decoding sequences; None if there are none.

        Unless the step also has prompts (`beside_prompts`), holes between slots are closed and
        drafts added. If `others_wait` for the step to end, drafts may prolong it only a little.
        """
        plan = self._decode(sequences, self._state.layout)
        if plan is None or beside_prompts:
            return plan
        if (moved := self.compactor.close_holes(plan)) is not None:
            self._state.sequences.events += moved
            plan = self._decode([item.sequence for item in plan.work], self._state.layout)
        return self._with_drafts(plan, others_wait=others_wait)

    def prefill_plans(self, sequences: SequenceOf[Sequence], num_decoding: int) -> Iterator[Plan]:
        """Plan the prefill calls of a step, while `num_decoding` other sequences wait.

        Sequences that end between two calls are left out of the second one.
        """
        plans = self._prefill(sequences, num_decoding)
        _count_skipped_steps(sequences, plans)
        for plan in plans:
            remaining = without_ended(plan)
            if remaining is not None:
                yield remaining

    def solo_plan(self, sequence: Sequence, *, others_wait: bool) -> Plan | None:
        """Plan the call of one deterministic sequence, without filler rows.

        Returns None if it has ended or lost its slot.
        """
        if not sequence.is_decoding:
            return next(iter(self._prefill([sequence], 0)), None)
        return self._with_drafts(self._decode([sequence], NO_FILLERS), others_wait=others_wait)

    def observe(self, plan: Plan, seconds: float) -> None:
        """Correct the predicted times with the duration of a decode call.

        Prefills are separate, since a row without output takes less time; those with all logits
        take more and are not counted.
        """
        state, rows, drafted = self._state, plan.num_decoding, plan.rows[0].drafted
        if plan.rows[0].scored:
            return
        if plan.has_vectors:
            state.step_time.observe_vectors(plan.prompt_tokens, seconds)
        elif plan.prompt_tokens:
            state.step_time.observe_prefill(
                num_decoding=rows, prompt_tokens=plan.prompt_tokens, seconds=seconds
            )
        else:
            if state.step_time.observe_decode(rows=rows, drafted=drafted, seconds=seconds):
                state.drafter.invalidate()
            if not drafted:
                stack = plan.work[0].sequence.request.adapters
                state.layout.observe([row.slot for row in plan.rows], seconds, stack)

    def _with_drafts(self, plan: Plan | None, *, others_wait: bool) -> Plan | None:
        if plan is None:
            return None
        spare_cells = self._state.capacity.spare_cells(plan)
        return self._state.drafter.extend(plan, spare_cells, others_wait=others_wait)

    def _decode(self, sequences: SequenceOf[Sequence], layout: BatchLayout) -> Plan | None:
        slots, limits = self._state.table.slots, self._state.backend.limits
        plans = self._fit(sequences, lambda members: (plan_decode(members, slots, limits, layout),))
        return next(iter(plans), None)

    def _prefill(self, sequences: SequenceOf[Sequence], num_decoding: int) -> tuple[Plan, ...]:
        state = self._state
        return self._fit(sequences, lambda members: plan_prefill(members, num_decoding, state))

    def _fit(
        self, sequences: SequenceOf[Sequence], plan: Callable[[list[Sequence]], tuple[Plan, ...]]
    ) -> tuple[Plan, ...]:
        """Plan the sequences that have slots; preempt running ones until the plans' cells fit."""
        while members := [sequence for sequence in sequences if sequence.slot is not None]:
            plans = plan(members)
            if self._state.capacity.can_hold(plans) or not self._admission.free_cells():
                return plans
        return ()


def _count_skipped_steps(sequences: SequenceOf[Sequence], plans: SequenceOf[Plan]) -> None:
    """Count the steps in which no prompt of a priority class was computed."""
    served = {item.sequence.effective_priority for plan in plans for item in plan.work}
    for sequence in sequences:
        sequence.skipped_steps = (
            0 if sequence.effective_priority in served else sequence.skipped_steps + 1
        )
