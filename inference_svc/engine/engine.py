"""The engine of one model: commands, steps and reports. `step.py` has the loop of a step.

All methods are called from one thread. A sequence that fails, is cancelled or expires does not
affect others.
"""

import logging
from collections.abc import Callable, Container, Iterator

from inference_svc.engine.backend import Backend
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine_parts import EngineOptions, EngineParts, check_integrity
from inference_svc.engine.events import Cancelled, Event, Failed, Flushed, ModelLoad
from inference_svc.engine.media import refusal
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.slots import Slot
from inference_svc.engine.spec_decode.draft_model import DraftModel
from inference_svc.engine.step import StepRunner
from svc_kit.errors import ContextLengthExceeded, DomainError

log = logging.getLogger(__name__)

LOAD_INTERVAL_S = 0.1
_GRAMMAR_PATIENCE_S = 0.005
"""How long a step waits for a grammar if it has no other work."""


class Engine:
    """Processes the sequences of one model. Times are in seconds, as those of `clock`."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        options: EngineOptions,
        *,
        layout: BatchLayout,
        clock: Callable[[], float],
        draft_model: DraftModel | None = None,
    ) -> None:
        self.name = name
        self.num_steps = 0
        self._state = state = EngineParts(backend, options, layout, clock, draft_model)
        self._runner = StepRunner(state)
        self.adapters = state.adapters
        self.prefix_cache = state.prefix_cache
        self._clock = clock
        self._sequences = state.sequences
        self._load_sent_at = float("-inf")

    @property
    def has_work(self) -> bool:
        """Whether a step would compute or start a sequence now."""
        if any(not sequence.paused for sequence in self._sequences.running.values()):
            return True
        return self._runner.admission.could_start

    @property
    def awaits_grammars(self) -> bool:
        """Whether all running sequences wait for their grammars, and none could start."""
        return self._runner.awaits_grammars

    @property
    def is_decoding(self) -> bool:
        """Whether the next step computes tokens of streams."""
        return any(
            sequence.is_decoding and sequence.is_ready
            for sequence in self._sequences.running.values()
        )

    @property
    def encoder_pause_s(self) -> float:
        """How long to leave the cores to an encoder after this step, if it was stopped."""
        return self._runner.step_clock.encoder_pause_s

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
        problem = self._refusal(sequence)
        if problem is not None:
            self._sequences.events.append(Failed(request.sequence_id, problem))
            return
        self._sequences.add(sequence)

    def _refusal(self, sequence: Sequence) -> DomainError | None:
        request, limits = sequence.request, self._state.backend.limits
        for count, limit in (
            (len(sequence.tokens), limits.slot_tokens),
            (len(request.source), limits.source_tokens or 0),
        ):
            if count > limit:
                return ContextLengthExceeded(
                    field="prompt", prompt_tokens=count, context_tokens=limit
                )
        missing = self.adapters.missing(request)
        if missing is not None or not request.media:
            return missing
        return refusal(request.media, request.prompt, limits.pass_tokens)

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
        self._state.drafter.clear_model()
        self._sequences.events.append(Flushed(job_id, self._state.allocator.drop_cached()))

    # --- prefixes ---------------------------------------------------------------------------------

    def snapshot(self, request_id: str, choice: int) -> SavedPrefix | None:
        """Copy the state of a running, waiting or ended sequence; None if nothing is computed."""
        for sequence in self._sequences.by_id.values():
            if (sequence.request.request_id, sequence.request.choice) == (request_id, choice):
                return self._state.allocator.snapshot(sequence)
        return self.prefix_cache.find_sequence(request_id, choice)

    def min_restored(self, tokens: int) -> int:
        """The fewest tokens, besides 0, that a restored state of this many tokens serves."""
        return self._state.backend.min_restored(tokens)

    def num_reusable_tokens(self, request: SequenceRequest) -> int:
        """How many tokens of a request are cached in slots and memory now."""
        return self._state.allocator.find_prefix(Sequence(request, arrived_at=0.0)).tokens

    def unlink_owners(self, owners: Container[str]) -> None:
        """Detach sequences and cached prefixes from deleted owners of archives."""
        self._state.allocator.unlink_owners(owners)
        for sequence in self._sequences.by_id.values():
            if sequence.kept_for in owners:
                sequence.kept_for = ""

    def slots_to_archive(self) -> list[Slot]:
        """The slots whose cells, of running sequences too, are archived and could be copied now."""
        return self._state.allocator.slots_to_archive()

    def copy_to_archive(self, slot: Slot) -> SavedPrefix | None:
        """Copy the cells of a slot for its owner; None if that is impossible now."""
        return self._state.allocator.copy_to_archive(slot)

    # --- steps ------------------------------------------------------------------------------------

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
        for _ in self._runner.decode_calls(patience_s):
            self.num_steps += 1
            yield self._collect_events()
        yield self._collect_events()

    def _collect_events(self) -> list[Event]:
        now, sequences = self._clock(), self._sequences
        is_last = bool(sequences.events) and not sequences.running
        if is_last or now - self._load_sent_at >= LOAD_INTERVAL_S:
            self._load_sent_at = now
            sequences.events.append(self._load())
        events, sequences.events = sequences.events, []
        return events

    def _load(self) -> ModelLoad:
        state, runner, admission = self._state, self._runner, self._runner.admission
        running, queue = state.sequences.running, state.sequences.queue
        num_used = state.capacity.num_used
        return ModelLoad(
            model=self.name,
            num_running=len(running),
            num_waiting=len(queue),
            num_used_cells=num_used,
            num_idle_cells=min(state.table.num_idle_cells, num_used),
            num_steps=self.num_steps,
            prompt_tokens=runner.executor.prompt_tokens,
            cached_tokens=admission.cached_tokens,
            output_tokens=runner.output_processor.output_tokens,
            saved=state.prefix_cache.load(admission.num_misses),
            num_followers=admission.prefix_waiters.num_waiting_for_prefix,
            num_preempted=sum(sequence.saved_prefix is not None for sequence in queue),
            num_preemptions=admission.num_preemptions,
            num_moves=runner.planner.compactor.num_moves,
            draft_tokens=state.drafter.drafted.drafted,
            accepted_draft_tokens=state.drafter.drafted.accepted,
            by_draft_model=state.drafter.by_model,
            step_times=runner.step_clock.step_times.histograms(),
            prefills=tuple(
                (number, each.num_computed)
                for number, each in running.items()
                if not each.num_output
            ),
        )

    def check_integrity(self) -> None:
        """Compare the engine's bookkeeping with the native cache; tests call it after each step.

        Raises `IntegrityError`.
        """
        check_integrity(self._state)
