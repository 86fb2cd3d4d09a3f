"""Plans the decode calls of a step, each when it is due, within the capacity, the layout and the
drafts.
"""

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
    """Plans calls within `limits` for sequences that have slots of `table`."""

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
        """The call of those who decode, None where there are none. Holes are closed and drafts made
        where no prompts follow in the step; `others_wait`: drafts must not take long."""
        plan = self._decode(sequences, self._layout)
        if plan is None or beside_prompts:
            return plan
        if (moved := self._compactor.close_holes(plan)) is not None:
            self._sequences.events += moved
            plan = self._decode([item.sequence for item in plan.work], self._layout)
        return self._with_drafts(plan, others_wait=others_wait)

    def prefill_plans(self, sequences: SequenceOf[Sequence], num_decoding: int) -> Iterator[Plan]:
        """The calls of those who do not decode yet, while `num_decoding` others wait. What ends
        between two of them is left out of the second."""
        plans = self._prefill(sequences, num_decoding)
        _count_turns(sequences, plans)
        for plan in plans:
            left = without_ended(plan)
            if left is not None:
                yield left

    def solo_plan(self, sequence: Sequence, *, others_wait: bool) -> Plan | None:
        """The call of a deterministic sequence; None where it has ended or lost its slot. Nothing
        fills the holes beside it."""
        if not sequence.is_decoding:
            return next(iter(self._prefill([sequence], 0)), None)
        return self._with_drafts(self._decode([sequence], NO_FILLERS), others_wait=others_wait)

    def _with_drafts(self, plan: Plan | None, *, others_wait: bool) -> Plan | None:
        return self._drafter.extend(plan, others_wait=others_wait) if plan is not None else None

    def _decode(self, sequences: SequenceOf[Sequence], layout: BatchLayout) -> Plan | None:
        def make(those: list[Sequence]) -> tuple[Plan, ...]:
            return (plan_decode(those, self._table.slots, self._limits, layout),)

        return next(iter(self._fitting(sequences, make)), None)

    def _prefill(self, sequences: SequenceOf[Sequence], num_decoding: int) -> tuple[Plan, ...]:
        def make(those: list[Sequence]) -> tuple[Plan, ...]:
            return plan_prefill(those, num_decoding, self._limits, self._step_time, self._clock())

        return self._fitting(sequences, make)

    def _fitting(
        self, sequences: SequenceOf[Sequence], make: Callable[[list[Sequence]], tuple[Plan, ...]]
    ) -> tuple[Plan, ...]:
        """Plans for those of the sequences that have slots; where cells are short somebody gives
        its slot up, and who has none waits again."""
        while those := [sequence for sequence in sequences if sequence.slot is not None]:
            plans = make(those)
            if self._capacity.can_hold(plans) or not self._admission.free_cells():
                return plans
        return ()


def _count_turns(sequences: SequenceOf[Sequence], plans: SequenceOf[Plan]) -> None:
    """A class of prompts has a turn where any of them is computed."""
    served = {item.sequence.effective_priority for plan in plans for item in plan.work}
    for sequence in sequences:
        sequence.skipped_steps = (
            0 if sequence.effective_priority in served else sequence.skipped_steps + 1
        )
