"""The step loop of one model: admit, plan, decode, sample, emit.

A step first decodes, then prefills. All methods are called from one thread. A sequence that fails,
is cancelled or expires does not affect others.
"""

import logging
from collections.abc import Callable, Container, Iterator, Mapping

from inference_svc.engine.backend import Backend
from inference_svc.engine.cost_model.histograms import StepTimes
from inference_svc.engine.cost_model.step_time import StepTimeModel
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.defrag.compactor import Compactor, SlotMover
from inference_svc.engine.events import Cancelled, Event, Failed, Flushed, ModelLoad
from inference_svc.engine.executor import Executor
from inference_svc.engine.kv_cache.allocator import SlotAllocator
from inference_svc.engine.kv_cache.capacity import CacheCapacity
from inference_svc.engine.kv_cache.copies import CacheCopier, CopyCosts
from inference_svc.engine.kv_cache.integrity import IntegrityError, check_integrity
from inference_svc.engine.kv_cache.prefix_cache import PrefixCache
from inference_svc.engine.kv_cache.prefix_wait import PrefixWaiters
from inference_svc.engine.lora.loaded import Adapters
from inference_svc.engine.media import refusal
from inference_svc.engine.output_processor import OutputProcessor, SequencePreparer
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.engine.scheduler.admission import Admission
from inference_svc.engine.scheduler.plan import PlanLimits
from inference_svc.engine.scheduler.planner import Planner
from inference_svc.engine.scheduler.policy import Policy
from inference_svc.engine.scheduler.queue import AdmissionQueue, select_deterministic
from inference_svc.engine.scheduler.sequence_table import SequenceTable
from inference_svc.engine.sequence import Plan, Sequence
from inference_svc.engine.slots import SlotTable
from inference_svc.engine.spec_decode.drafter import Drafter
from svc_kit.errors import ContextLengthExceeded, DeadlineExpired, InvalidField

log = logging.getLogger(__name__)

LOAD_INTERVAL_S = 0.1
_GRAMMAR_PATIENCE_S = 0.005
"""How long a step waits for a grammar if it has no other work."""
_PAUSE_RATIO = 0.35
"""The encoder's time after a step, relative to that of the streams' decode call. What this took
longer than usual, and calls of vectors in the step, are subtracted."""
_MIN_PAUSE_RATIO = 0.1
"""Its minimum, relative to the time of the step."""


class Engine:
    """Processes the sequences of one model.

    Times are in seconds, as those of `clock`. `chunk_cap` is the maximum of prompt tokens in a step
    with decoding rows, and `saved_bytes` the size of the prefix cache in memory. `step_times` are
    measured seconds of a step by rows, `token_times` by tokens of a single row. `token_target_s` is
    the target time between two tokens, as `policy` allows. `adapter_wait_s` is the longest time
    that an adapter stack waits for its turn.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        *,
        layout: BatchLayout,
        chunk_cap: int,
        clock: Callable[[], float],
        copy_costs: CopyCosts | None = None,
        saved_bytes: int = 0,
        step_times: Mapping[int, float] | None = None,
        token_times: Mapping[int, float] | None = None,
        policy: Policy = Policy.BALANCED,
        token_target_s: float = 0.1,
        adapter_wait_s: float = 0.05,
    ) -> None:
        limits = backend.limits
        self.name = name
        self.num_steps = 0
        self.adapters = Adapters(backend, adapter_wait_s)
        self._backend = backend
        self._layout = layout
        self._clock = clock
        self._table = SlotTable(limits.slots)
        self.prefix_cache = PrefixCache(saved_bytes)
        copier = CacheCopier(backend, copy_costs or CopyCosts())
        self._allocator = SlotAllocator(backend, copier, self._table, self.prefix_cache)
        self._step_time = StepTimeModel(step_times or {}, limits, token_times)
        self._drafter = Drafter(limits, self._step_time, can_trim=backend.can_trim)
        self._queue = AdmissionQueue()
        self._sequences = SequenceTable(self._queue, self._allocator, self._drafter)
        self._prefix_waiters = PrefixWaiters(self._step_time, can_trim=backend.can_trim)
        self._capacity = CacheCapacity(backend, self._table, self._allocator)
        self._admission = Admission(
            self._table,
            self._allocator,
            self._capacity,
            self._sequences,
            self._prefix_waiters,
            clock,
        )
        mover = SlotMover(backend, copier, self._table, self._allocator)
        self._compactor = Compactor(self._table, mover, layout, limits.slot_tokens)
        self._output_processor = OutputProcessor(backend, self._sequences, clock)
        self._preparer = SequencePreparer(
            backend, self._sequences, self._output_processor, self.prefix_cache
        )
        self._planner = Planner(
            self._table,
            self._sequences,
            self._capacity,
            self._admission,
            self._compactor,
            self._drafter,
            layout,
            self._step_time,
            PlanLimits(limits, chunk_cap, policy, token_target_s),
            clock,
        )
        self._executor = Executor(
            backend, copier, self._table, self._sequences, self._output_processor, clock
        )
        self._step_times = StepTimes()
        self._step_s = self._encoder_s = 0.0  # time of this step, and what the encoder gets of it
        self._load_sent_at = float("-inf")

    @property
    def has_work(self) -> bool:
        """Whether a step would compute or start a sequence now."""
        if any(not sequence.paused for sequence in self._sequences.running.values()):
            return True
        return self._could_start

    @property
    def _could_start(self) -> bool:
        """Whether a waiting sequence could have a slot and does not wait for cells."""
        waits_for_cells = self._admission.lacks_cells and self._sequences.running
        return self._table.has_idle and self._queue.has_ready and not waits_for_cells

    @property
    def awaits_grammars(self) -> bool:
        """Whether all running sequences wait for their grammars, and none could start."""
        if self._could_start:
            return False
        ready = [sequence for sequence in self._sequences.running.values() if not sequence.paused]
        return bool(ready) and all(sequence.is_stalled for sequence in ready)

    @property
    def has_sequences(self) -> bool:
        """Whether any sequence waits or runs, including paused ones, whose deadlines may pass."""
        return bool(self._sequences.by_id)

    @property
    def has_events(self) -> bool:
        """Whether there are events to collect; `submit`, `cancel` and `flush` add some too."""
        return bool(self._sequences.events)

    @property
    def running(self) -> list[Sequence]:
        """The sequences that have a slot."""
        return list(self._sequences.running.values())

    # --- commands ---------------------------------------------------------------------------------

    def submit(self, request: SequenceRequest) -> None:
        """Queue a sequence; it fails at once if it is too long, its adapter is unknown, or its
        chunks of vectors cannot be computed."""
        sequence = Sequence(request, arrived_at=self._clock())
        problem = (
            self._too_long(sequence)
            or self.adapters.missing(request)
            or self._media_refusal(request)
        )
        if problem is not None:
            self._sequences.events.append(Failed(request.sequence_id, problem))
            return
        self._sequences.add(sequence)

    def _media_refusal(self, request: SequenceRequest) -> InvalidField | None:
        if not request.media:
            return None
        return refusal(request.media, request.prompt, self._backend.limits.pass_tokens)

    def _too_long(self, sequence: Sequence) -> ContextLengthExceeded | None:
        limits = self._backend.limits
        counts = (
            (len(sequence.tokens), limits.slot_tokens),
            (len(sequence.request.source), limits.source_tokens or 0),
        )
        for count, limit in counts:
            if count > limit:
                return ContextLengthExceeded(
                    field="prompt", prompt_tokens=count, context_tokens=limit
                )
        return None

    def cancel(self, sequence_id: int, *, arrived_in_step: int, step: int) -> None:
        """Cancel a sequence before `step` begins; unknown ids are ignored.

        `arrived_in_step` is the step that ran when the cancel arrived. The caller counts each
        decode call as a step.
        """
        sequence = self._sequences.by_id.get(sequence_id)
        if sequence is None:
            return
        phase = sequence.phase
        self._sequences.remove(sequence)
        log.info(
            "sequence %d (%s): cancel arrived in step %d, slot freed in step %d",
            sequence_id,
            phase,
            arrived_in_step,
            step,
        )
        self._sequences.events.append(Cancelled(sequence_id, phase, arrived_in_step, step))

    def pause(self, sequence_id: int, *, paused: bool) -> None:
        """Exclude a sequence from plans, or include it again."""
        sequence = self._sequences.by_id.get(sequence_id)
        if sequence is not None:
            sequence.paused = paused

    def flush(self, job_id: int) -> None:
        """Drop all cached prefixes."""
        self._sequences.events.append(Flushed(job_id, self._allocator.drop_cached()))

    # --- prefixes ---------------------------------------------------------------------------------

    def snapshot(self, request_id: str, choice: int) -> SavedPrefix | None:
        """Copy the state of a running, waiting or ended sequence; None if nothing is computed."""
        for sequence in self._sequences.by_id.values():
            if (sequence.request.request_id, sequence.request.choice) == (request_id, choice):
                return self._allocator.snapshot(sequence)
        return self.prefix_cache.find_sequence(request_id, choice)

    def min_restored(self, tokens: int) -> int:
        """The fewest tokens, besides 0, that a restored state of this many tokens serves."""
        return self._backend.min_restored(tokens)

    def num_reusable_tokens(self, request: SequenceRequest) -> int:
        """How many tokens of a request are cached in slots and memory now."""
        return self._allocator.find_prefix(Sequence(request, arrived_at=self._clock())).tokens

    def unlink_objects(self, object_ids: Container[str]) -> None:
        """Detach sequences and cached prefixes from deleted stored objects."""
        self._allocator.unlink_objects(object_ids)
        for sequence in self._sequences.by_id.values():
            if sequence.kept_for in object_ids:
                sequence.kept_for = ""

    # --- step loop --------------------------------------------------------------------------------

    @property
    def encoder_pause_s(self) -> float:
        """How long to leave the cores to an encoder after this step, if it was stopped."""
        return max(self._encoder_s, _MIN_PAUSE_RATIO * self._step_s)

    @property
    def is_decoding(self) -> bool:
        """Whether the next step computes tokens of streams."""
        return any(sequence.is_decoding for sequence in self._ready())

    def step(self, *, patience_s: float = _GRAMMAR_PATIENCE_S) -> list[Event]:
        """Run one step, as `decode_calls` does, and return its events in order."""
        return [event for events in self.decode_calls(patience_s=patience_s) for event in events]

    def decode_calls(self, *, patience_s: float = _GRAMMAR_PATIENCE_S) -> Iterator[list[Event]]:
        """Run one step: a token for each decoding sequence, then a chunk of prompts.

        Yields events after each decode call and at the end, so that finished sequences do not wait
        for a prefill call (0.4 to 1.1 s with half a billion parameters). Commands may be called in
        between; a request submitted then is part of the prefill call. If all sequences wait for
        grammars, waits up to `patience_s` seconds.
        """
        self._step_s = self._encoder_s = 0.0
        self._expire()
        self._admission.admit(self._preparer.prepare)
        self._begin_guided(patience_s)
        for plan in self._plans():
            self._execute(plan)
            yield self._collect_events()
        yield self._collect_events()

    def _plans(self) -> Iterator[Plan]:
        """Plan the decode calls of a step. Each is executed before the next one is planned."""
        ready = self._ready()
        active = self.adapters.select(ready, self._clock())
        if not active:
            return
        shared = [sequence for sequence in active if not sequence.request.deterministic]
        texts = [sequence for sequence in shared if sequence.is_decoding]
        joining = [sequence for sequence in shared if sequence.is_at_last_token] if texts else []
        plan = self._planner.decode_plan(
            texts + joining,
            beside_prompts=len(shared) > len(texts),
            others_wait=len(ready) > len(texts),
        )
        if plan is not None:
            num_changes = self._sequences.num_changes
            yield plan
            has_changed = self._sequences.num_changes != num_changes
            if len(texts) == len(ready) and not has_changed:
                return  # no other sequence needs a call, as in most steps
            self._expire()
            if has_changed or self._sequences.num_changes != num_changes:
                self._admission.admit(self._preparer.prepare)
            self._begin_guided(0.0)
        active = self.adapters.on_turn(self._ready())
        shared = [sequence for sequence in active if not sequence.request.deterministic]
        prompts = [sequence for sequence in shared if not sequence.is_decoding]
        yield from self._planner.prefill_plans(prompts, len(shared) - len(prompts))
        alone = [sequence for sequence in active if sequence.request.deterministic]
        for sequence in select_deterministic(alone, self._clock()):
            plan = self._planner.solo_plan(sequence, others_wait=len(ready) > 1)
            if plan is not None:
                yield plan

    def _ready(self) -> list[Sequence]:
        """The sequences that have a slot and tokens to compute."""
        return [
            sequence
            for sequence in self._sequences.running.values()
            if not sequence.paused and not sequence.is_stalled
        ]

    def _execute(self, plan: Plan) -> None:
        started = self._clock()
        self.num_steps += 1
        was_one_call = self._executor.execute(plan)
        seconds, has_prompt = self._clock() - started, plan.prompt_tokens > 0
        self._step_times.observe(rows=len(plan.rows), has_prompt=has_prompt, seconds=seconds)
        self._step_s += seconds
        if plan.has_vectors:
            self._encoder_s -= seconds
        elif plan.num_decoding:
            self._encoder_s += (1 + _PAUSE_RATIO) * self._usual_s(plan, seconds) - seconds
        if was_one_call:
            self._update_cost_model(plan, seconds)

    def _usual_s(self, plan: Plan, seconds: float) -> float:
        """The seconds of a decode call, at most what one of single tokens takes usually."""
        usual_s = self._step_time.decode_s(plan.num_decoding)
        has_single_tokens = not plan.prompt_tokens and not plan.rows[0].drafted
        return min(seconds, usual_s) if has_single_tokens and usual_s else seconds

    def _update_cost_model(self, plan: Plan, seconds: float) -> None:
        """Update the cost model with the duration of a decode call.

        Prefills are separate, since a row without output takes less time; those with all logits
        take more and are not counted.
        """
        if plan.rows[0].scored:
            return
        rows, drafted = plan.num_decoding, plan.rows[0].drafted
        if plan.prompt_tokens:
            if plan.has_vectors:
                self._step_time.observe_vectors(plan.prompt_tokens, seconds)
                return
            self._step_time.observe_prefill(
                num_decoding=rows, prompt_tokens=plan.prompt_tokens, seconds=seconds
            )
            return
        if self._step_time.observe_decode(rows=rows, drafted=drafted, seconds=seconds):
            self._drafter.invalidate()
        if not drafted:
            stack = plan.work[0].sequence.request.adapters
            self._layout.observe([row.slot for row in plan.rows], seconds, stack)

    def _expire(self) -> None:
        now = self._clock()
        expired = self._queue.expired(now)
        expired += [
            sequence
            for sequence in self._sequences.running.values()
            if sequence.request.deadline is not None and sequence.request.deadline <= now
        ]
        for sequence in expired:
            self._sequences.fail(sequence, DeadlineExpired(phase=sequence.phase))

    def _begin_guided(self, patience_s: float) -> None:
        """Start the sequences whose grammar is built; others compute all but the last token."""
        guided = [item for item in self.running if item.awaits_grammar and not item.paused]
        if guided:
            self._preparer.begin_guided(guided, patience_s if self.awaits_grammars else 0.0)

    def _collect_events(self) -> list[Event]:
        now, sequences = self._clock(), self._sequences
        is_last = bool(sequences.events) and not sequences.running
        if is_last or now - self._load_sent_at >= LOAD_INTERVAL_S:
            self._load_sent_at = now
            sequences.events.append(self._load())
        events, sequences.events = sequences.events, []
        return events

    def _load(self) -> ModelLoad:
        return ModelLoad(
            model=self.name,
            num_running=len(self._sequences.running),
            num_waiting=len(self._queue),
            num_used_cells=self._capacity.num_used,
            num_idle_cells=min(self._table.num_idle_cells, self._capacity.num_used),
            num_steps=self.num_steps,
            prompt_tokens=self._executor.prompt_tokens,
            cached_tokens=self._admission.cached_tokens,
            output_tokens=self._output_processor.output_tokens,
            saved=self.prefix_cache.load(self._admission.num_misses),
            num_followers=self._prefix_waiters.num_waiting_for_prefix,
            num_preempted=sum(sequence.saved_prefix is not None for sequence in self._queue),
            num_preemptions=self._admission.num_preemptions,
            num_moves=self._compactor.num_moves,
            draft_tokens=self._drafter.num_drafted,
            accepted_draft_tokens=self._drafter.num_accepted,
            step_times=self._step_times.histograms(),
        )

    def check_integrity(self) -> None:
        """Compare the engine's bookkeeping with the native cache; tests call it after each step.

        Raises `IntegrityError`.
        """
        check_integrity(
            self._table, self._backend, self._sequences.running, self._queue, self.prefix_cache
        )
        if any(self.adapters.missing(item.request) for item in self._sequences.by_id.values()):
            raise IntegrityError("an adapter was unloaded while a sequence uses it")
        if not self._allocator.is_flushed:
            raise IntegrityError("a planned copy was not queued")
        self._sequences.check_integrity()
