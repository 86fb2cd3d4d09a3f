"""Plans the decode calls of a step: fits them into the KV cache, defragments slots, adds drafts."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf

from inference_svc.engine.cost_model.step_time import StepTimeModel
from inference_svc.engine.defrag.batch_layout import NO_FILLERS, BatchLayout
from inference_svc.engine.defrag.compactor import Compactor
from inference_svc.engine.kv_cache.capacity import CacheCapacity
from inference_svc.engine.scheduler.admission import Admission
from inference_svc.engine.scheduler.plan import PlanLimits, plan_decode, plan_prefill, without_ended
from inference_svc.engine.scheduler.sequence_table import SequenceTable
from inference_svc.engine.sequence import Plan, Sequence
from inference_svc.engine.slots import SlotTable
from inference_svc.engine.spec_decode.drafter import Drafter


class Planner:
    """Plans decode calls within `limits`, for sequences that have slots."""

    def __init__(
        self,
        table: SlotTable,
        sequences: SequenceTable,
        capacity: CacheCapacity,
        admission: Admission,
        compactor: Compactor,
        drafter: Drafter,
        layout: BatchLayout,
        step_time: StepTimeModel,
        limits: PlanLimits,
        clock: Callable[[], float],
    ) -> None:
        self._table = table
        self._sequences = sequences
        self._capacity = capacity
        self._admission = admission
        self._compactor = compactor
        self._drafter = drafter
        self._layout = layout
        self._step_time = step_time
        self._limits = limits
        self._clock = clock

    def decode_plan(
        self, sequences: SequenceOf[Sequence], *, beside_prompts: bool, others_wait: bool
    ) -> Plan | None:
        """Plan the call of the decoding sequences; None if there are none.

        Unless the step also has prompts (`beside_prompts`), holes between slots are closed and
        drafts added. If `others_wait` for the step to end, drafts may prolong it only a little.
        """
        plan = self._decode(sequences, self._layout)
        if plan is None or beside_prompts:
            return plan
        if (moved := self._compactor.close_holes(plan)) is not None:
            self._sequences.events += moved
            plan = self._decode([item.sequence for item in plan.work], self._layout)
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

    def _with_drafts(self, plan: Plan | None, *, others_wait: bool) -> Plan | None:
        return self._drafter.extend(plan, others_wait=others_wait) if plan is not None else None

    def _decode(self, sequences: SequenceOf[Sequence], layout: BatchLayout) -> Plan | None:
        def plan(members: list[Sequence]) -> tuple[Plan, ...]:
            return (plan_decode(members, self._table.slots, self._limits, layout),)

        return next(iter(self._fit(sequences, plan)), None)

    def _prefill(self, sequences: SequenceOf[Sequence], num_decoding: int) -> tuple[Plan, ...]:
        def plan(members: list[Sequence]) -> tuple[Plan, ...]:
            return plan_prefill(members, num_decoding, self._limits, self._step_time, self._clock())

        return self._fit(sequences, plan)

    def _fit(
        self, sequences: SequenceOf[Sequence], plan: Callable[[list[Sequence]], tuple[Plan, ...]]
    ) -> tuple[Plan, ...]:
        """Plan the sequences that have slots; preempt running ones until the plans' cells fit."""
        while members := [sequence for sequence in sequences if sequence.slot is not None]:
            plans = plan(members)
            if self._capacity.can_hold(plans) or not self._admission.free_cells():
                return plans
        return ()


def _count_skipped_steps(sequences: SequenceOf[Sequence], plans: SequenceOf[Plan]) -> None:
    """Count the steps in which no prompt of a priority class was computed."""
    served = {item.sequence.effective_priority for plan in plans for item in plan.work}
    for sequence in sequences:
        sequence.skipped_steps = (
            0 if sequence.effective_priority in served else sequence.skipped_steps + 1
        )
