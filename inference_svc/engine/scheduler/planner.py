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
        roster: SequenceTable,
        room: CacheCapacity,
        admitter: Admission,
        compactor: Compactor,
        drafter: Drafter,
        shape: BatchLayout,
        cost: StepTimeModel,
        limits: PlanLimits,
        clock: Callable[[], float],
    ) -> None:
        self._table = table
        self._roster = roster
        self._room = room
        self._admitter = admitter
        self._compactor = compactor
        self._drafter = drafter
        self._shape = shape
        self._cost = cost
        self._limits = limits
        self._clock = clock

    def texts(
        self, sequences: SequenceOf[Sequence], *, beside_prompts: bool, others_wait: bool
    ) -> Plan | None:
        """The call of those who decode, None where there are none. Holes are closed and drafts made
        where no prompts follow in the step; `others_wait`: drafts must not take long."""
        plan = self._texts(sequences, self._shape)
        if plan is None or beside_prompts:
            return plan
        if (moved := self._compactor.close_holes(plan)) is not None:
            self._roster.events += moved
            plan = self._texts([item.sequence for item in plan.work], self._shape)
        return self._drafted(plan, others_wait=others_wait)

    def prompts(self, sequences: SequenceOf[Sequence], num_decoding: int) -> Iterator[Plan]:
        """The calls of those who do not decode yet, while `num_decoding` others wait. What ends
        between two of them is left out of the second."""
        plans = self._prompts(sequences, num_decoding)
        _count_turns(sequences, plans)
        for plan in plans:
            left = without_ended(plan)
            if left is not None:
                yield left

    def alone(self, sequence: Sequence, *, others_wait: bool) -> Plan | None:
        """The call of a deterministic sequence; None where it has ended or lost its slot. Nothing
        fills the holes beside it."""
        if not sequence.is_decoding:
            return next(iter(self._prompts([sequence], 0)), None)
        return self._drafted(self._texts([sequence], NO_FILLERS), others_wait=others_wait)

    def _drafted(self, plan: Plan | None, *, others_wait: bool) -> Plan | None:
        return self._drafter.extend(plan, others_wait=others_wait) if plan is not None else None

    def _texts(self, sequences: SequenceOf[Sequence], shape: BatchLayout) -> Plan | None:
        def make(those: list[Sequence]) -> tuple[Plan, ...]:
            return (plan_decode(those, self._table.slots, self._limits, shape),)

        return next(iter(self._fitting(sequences, make)), None)

    def _prompts(self, sequences: SequenceOf[Sequence], num_decoding: int) -> tuple[Plan, ...]:
        def make(those: list[Sequence]) -> tuple[Plan, ...]:
            return plan_prefill(those, num_decoding, self._limits, self._cost, self._clock())

        return self._fitting(sequences, make)

    def _fitting(
        self, sequences: SequenceOf[Sequence], make: Callable[[list[Sequence]], tuple[Plan, ...]]
    ) -> tuple[Plan, ...]:
        """Plans for those of the sequences that have slots; where cells are short somebody gives
        its slot up, and who has none waits again."""
        while those := [sequence for sequence in sequences if sequence.slot is not None]:
            plans = make(those)
            if self._room.holds(plans) or not self._admitter.free_cells():
                return plans
        return ()


def _count_turns(sequences: SequenceOf[Sequence], plans: SequenceOf[Plan]) -> None:
    """A class of prompts has a turn where any of them is computed."""
    served = {item.sequence.urgency for plan in plans for item in plan.work}
    for sequence in sequences:
        sequence.passed_over = 0 if sequence.urgency in served else sequence.passed_over + 1
