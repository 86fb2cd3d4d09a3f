"""What the parts of an engine share, its options, and the check of what must hold between calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inference_svc.engine.backend import Backend
from inference_svc.engine.cost_model.step_time import StepTimeModel
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.kv_cache.allocator import SlotAllocator
from inference_svc.engine.kv_cache.capacity import CacheCapacity
from inference_svc.engine.kv_cache.copies import CacheCopier, CopyCosts
from inference_svc.engine.kv_cache.prefix_cache import PrefixCache
from inference_svc.engine.lora.loaded import Adapters
from inference_svc.engine.scheduler.policy import Policy
from inference_svc.engine.scheduler.sequence_table import SequenceTable
from inference_svc.engine.slots import SlotTable
from inference_svc.engine.spec_decode.draft_model import DraftModel
from inference_svc.engine.spec_decode.drafter import Drafter


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings of an engine, and what its warm-up measured. Times are in seconds."""

    chunk_cap: int
    """Maximum of prompt tokens in a step with decoding rows."""
    saved_bytes: int = 0
    """Size of the prefix cache in memory."""
    policy: Policy = Policy.BALANCED
    token_target_s: float = 0.1
    """Target time between two tokens, as `policy` allows."""
    adapter_wait_s: float = 0.05
    """The longest time that an adapter stack waits for its turn."""
    copy_costs: CopyCosts = field(default_factory=CopyCosts)
    step_times: Mapping[int, float] = field(default_factory=dict)
    """Time of a step by rows."""
    token_times: Mapping[int, float] | None = None
    """Time of a step by the tokens of its single row."""


class EngineParts:
    """The sequences, slots and caches of an engine, and the predictions of its times. The parts of
    an engine share one; `clock` gives seconds."""

    def __init__(
        self,
        backend: Backend,
        options: EngineOptions,
        layout: BatchLayout,
        clock: Callable[[], float],
        draft_model: DraftModel | None = None,
    ) -> None:
        limits = backend.limits
        self.backend = backend
        self.options = options
        self.layout = layout
        self.clock = clock
        self.table = SlotTable(limits.slots)
        self.prefix_cache = PrefixCache(options.saved_bytes)
        self.copier = CacheCopier(backend, options.copy_costs)
        self.allocator = SlotAllocator(backend, self.copier, self.table, self.prefix_cache)
        self.capacity = CacheCapacity(backend, self.table, self.allocator)
        self.adapters = Adapters(backend, options.adapter_wait_s)
        self.step_time = StepTimeModel(options.step_times, limits, options.token_times)
        self.draft_model = draft_model
        self.drafter = Drafter(limits, self.step_time, can_trim=backend.can_trim, model=draft_model)
        self.sequences = SequenceTable(self.allocator, self.drafter)


class IntegrityError(Exception):
    """The bookkeeping and the native cache disagree."""


def check_integrity(state: EngineParts) -> None:
    """Compare slots with the native cache, and sequences with slots, adapters and saved states.

    Raises `IntegrityError`.
    """
    _check_slots(state)
    sequences = state.sequences
    running, queue, by_id = sequences.running, sequences.queue, sequences.by_id
    if {*running, *queue.ids} != set(by_id) or len(running) + len(queue) != len(by_id):
        raise IntegrityError("a sequence must be either queued or running")
    for sequence in running.values():
        computed = sequence.num_computed
        if sequence.slot is None or sequence.slot.tokens != sequence.tokens[:computed]:
            raise IntegrityError(f"sequence {sequence.request.sequence_id} lost its prefix")
    states = [sequence.saved_prefix for sequence in queue if sequence.saved_prefix is not None]
    if sum(len(saved.state) for saved in states) != state.prefix_cache.num_reserved:
        raise IntegrityError("the reserved bytes are not those of the preempted sequences")
    if any(state.adapters.missing(sequence.request) for sequence in by_id.values()):
        raise IntegrityError("an adapter was unloaded while a sequence uses it")


def _check_slots(state: EngineParts) -> None:
    backend, running = state.backend, state.sequences.running
    owners = [slot.owner for slot in state.table.slots if slot.owner is not None]
    if sorted(owners) != sorted(running):
        raise IntegrityError(f"slot owners {owners} differ from running sequences {list(running)}")
    for slot in state.table.slots:
        native = backend.slot_length(slot.index)
        if native != len(slot.tokens):
            raise IntegrityError(
                f"slot {slot.index} has {native} cells for {len(slot.tokens)} tokens"
            )
        if not backend.can_trim_to(slot.index, native):
            raise IntegrityError(f"slot {slot.index} lacks cells that its next token depends on")
    if backend.limits.cells is not None and backend.used_cells > backend.limits.cells:
        raise IntegrityError(f"{backend.used_cells} of {backend.limits.cells} cells are in use")
    if state.draft_model is not None and not state.draft_model.is_consistent:
        raise IntegrityError("a slot of the draft model has not the cells of its tokens")
    if not state.allocator.is_flushed:
        raise IntegrityError("a planned copy was not queued")
