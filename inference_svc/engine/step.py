"""One step of the engine: expire, admit, then plan, decode, sample and emit, call after call."""

from collections.abc import Iterator

from inference_svc.engine.cost_model.step_clock import StepClock
from inference_svc.engine.engine_parts import EngineParts
from inference_svc.engine.executor import Executor
from inference_svc.engine.output_processor import OutputProcessor, SequencePreparer
from inference_svc.engine.scheduler.admission import Admission
from inference_svc.engine.scheduler.planner import Planner
from inference_svc.engine.scheduler.queue import select_deterministic
from inference_svc.engine.sequence import Plan
from svc_kit.errors import DeadlineExpired


class StepRunner:
    """Runs the steps of an engine. Events are appended to those of the sequence table."""

    def __init__(self, state: EngineParts) -> None:
        self.output_processor = OutputProcessor(state)
        self.admission = Admission(state)
        self.planner = Planner(state, self.admission)
        self.executor = Executor(state, self.output_processor)
        self.step_clock = StepClock(state.step_time)
        self._preparer = SequencePreparer(state, self.output_processor)
        self._sequences = state.sequences
        self._adapters = state.adapters
        self._clock = state.clock

    def decode_calls(self, patience_s: float) -> Iterator[None]:
        """Run one step; yields after each decode call.

        If all sequences wait for grammars, waits up to `patience_s` seconds.
        """
        self.step_clock.begin_step()
        self._expire()
        self.admission.admit(self._preparer.prepare)
        self._begin_guided(patience_s)
        for plan in self._plans():
            started = self._clock()
            was_one_call = self.executor.execute(plan)
            seconds = self._clock() - started
            self.step_clock.observe(plan, seconds)
            if was_one_call:
                self.planner.observe(plan, seconds)
            yield

    def _plans(self) -> Iterator[Plan]:
        """Plan the decode calls of a step. Each is executed before the next one is planned.

        A token for each decoding sequence, then chunks of prompts, then the deterministic sequences
        alone. Requests may arrive, and others end, between the first call and the next.
        """
        sequences = self._sequences
        ready = sequences.ready()
        active = self._adapters.select(ready, self._clock())
        if not active:
            return
        shared = [sequence for sequence in active if not sequence.request.deterministic]
        texts = [sequence for sequence in shared if sequence.is_decoding]
        joining = [sequence for sequence in shared if sequence.is_at_last_token] if texts else []
        plan = self.planner.decode_plan(
            texts + joining,
            beside_prompts=len(shared) > len(texts),
            others_wait=len(ready) > len(texts),
        )
        if plan is not None:
            num_changes = sequences.num_changes
            yield plan
            has_changed = sequences.num_changes != num_changes
            if len(texts) == len(ready) and not has_changed:
                return  # no other sequence needs a call, as in most steps
            self._expire()
            if has_changed or sequences.num_changes != num_changes:
                self.admission.admit(self._preparer.prepare)
            self._begin_guided(0.0)
        active = self._adapters.on_turn(sequences.ready())
        shared = [sequence for sequence in active if not sequence.request.deterministic]
        prompts = [sequence for sequence in shared if not sequence.is_decoding]
        yield from self.planner.prefill_plans(prompts, len(shared) - len(prompts))
        alone = [sequence for sequence in active if sequence.request.deterministic]
        for sequence in select_deterministic(alone, self._clock()):
            plan = self.planner.solo_plan(sequence, others_wait=len(ready) > 1)
            if plan is not None:
                yield plan

    @property
    def awaits_grammars(self) -> bool:
        """Whether all running sequences wait for their grammars, and none could start."""
        running = self._sequences.running.values()
        if any(sequence.is_ready for sequence in running) or self.admission.could_start:
            return False
        return any(not sequence.paused for sequence in running)

    def _begin_guided(self, patience_s: float) -> None:
        """Start the sequences whose grammar is built; others compute all but the last token."""
        running = self._sequences.running.values()
        guided = [item for item in running if item.awaits_grammar and not item.paused]
        if guided:
            self._preparer.begin_guided(guided, patience_s if self.awaits_grammars else 0.0)

    def _expire(self) -> None:
        for sequence in self._sequences.expired(self._clock()):
            self._sequences.fail(sequence, DeadlineExpired(phase=sequence.phase))
