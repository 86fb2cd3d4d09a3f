"""The step loop of one model: admit → plan → decode → sample → emit.

One thread calls everything here. A sequence that fails, is cancelled or expires never touches
another one: a decode that fails is rolled back and retried, without drafts and then in halves,
until the row that cannot be computed stands alone.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf

from inference_svc.engine.adapters import Adapters
from inference_svc.engine.admission import AdmissionQueue
from inference_svc.engine.admitting import Admitter
from inference_svc.engine.backend import (
    Backend,
    DecodeError,
    Sampled,
    SampleFailed,
    Sampler,
    SampleTask,
)
from inference_svc.engine.budget import Policy
from inference_svc.engine.cells import Cells, CopyCosts
from inference_svc.engine.drafting import Drafter, confirm
from inference_svc.engine.events import (
    Cancelled,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    Flushed,
    ModelLoad,
    Timings,
)
from inference_svc.engine.fairness import FairShare
from inference_svc.engine.following import Followers
from inference_svc.engine.guide import MAX_FORCED, GuideFailed
from inference_svc.engine.integrity import IntegrityError, check_books
from inference_svc.engine.origin import hidden_of
from inference_svc.engine.pacing import StepCost
from inference_svc.engine.placing import Placer
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.saved import SavedPrefix, SavedPrefixes
from inference_svc.engine.scheduler import Plan, PlanLimits, Work, plan_step
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.shape import NO_FILLERS, StepShape
from inference_svc.engine.slots import Slot, SlotTable
from inference_svc.engine.solo import apart
from inference_svc.engine.step_times import StepTimes
from inference_svc.engine.token_batch import Row, TokenBatch, check_native_limits
from svc_kit.errors import (
    ContextLengthExceeded,
    DeadlineExpired,
    DecodeFailed,
    DomainError,
    GrammarInvalid,
    InvalidField,
    SnapshotNotFound,
)

log = logging.getLogger(__name__)

LOAD_INTERVAL_S = 0.1
_GRAMMAR_PATIENCE_S = 0.005  # how long a step waits for a grammar when there is nothing else to do


class Engine:
    """The sequences of one model. `clock` gives seconds; `chunk_cap` bounds prompt tokens beside
    decoding rows; `saved_bytes` are for prefixes that lost their slot;
    `step_times` are seconds by rows, `token_times` by the tokens of a row alone, as measured;
    `policy` may hold `token_target_s` between two tokens; `adapter_wait_s` bounds how long an
    adapter stack waits for its turn."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        *,
        shape: StepShape,
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
        self.adapters = Adapters(name, backend, adapter_wait_s)
        self._backend = backend
        self._native = limits
        self._plan_limits = PlanLimits(
            limits.batch_tokens, chunk_cap, limits.slot_tokens, policy, token_target_s
        )
        self._shape = shape
        self._clock = clock
        self._table = SlotTable(limits.slots)
        self._cells = Cells(backend, copy_costs or CopyCosts())
        self._saved = SavedPrefixes(saved_bytes)
        self._placer = Placer(backend, self._cells, self._table, self._saved)
        self._cost = StepCost(step_times or {}, limits.slots, token_times)
        self._drafter = Drafter(limits, self._cost, can_trim=backend.can_trim)
        self._shares = FairShare()
        self._queue = AdmissionQueue(self._shares)
        self._running: dict[int, Sequence] = {}
        self._followers = Followers(self._cost, can_trim=backend.can_trim)
        self._admitter = Admitter(
            self._table,
            self._placer,
            self._queue,
            self._followers,
            self._shares,
            self._running,
            clock,
        )
        self._sequences: dict[int, Sequence] = {}
        self._events: list[Event] = []
        self._prompt_tokens = self._output_tokens = 0
        self._step_times = StepTimes()
        self._load_sent_at = float("-inf")

    @property
    def has_work(self) -> bool:
        """Whether a step would compute or start something now."""
        if any(not sequence.paused for sequence in self._running.values()):
            return True
        return self._table.has_idle and self._queue.has_ready

    @property
    def awaits_grammars(self) -> bool:
        """Whether a step could only look whether a grammar is built."""
        if self._table.has_idle and self._queue.has_ready:
            return False
        ready = [sequence for sequence in self._running.values() if not sequence.paused]
        return bool(ready) and all(sequence.is_stalled for sequence in ready)

    @property
    def has_sequences(self) -> bool:
        """Whether anything waits or runs, be it paused: deadlines may still pass."""
        return bool(self._sequences)

    @property
    def has_news(self) -> bool:
        """Whether events wait to be taken (a cancel leaves one without a step)."""
        return bool(self._events)

    @property
    def running(self) -> list[Sequence]:
        """The sequences that have a slot."""
        return list(self._running.values())

    # --- commands ---------------------------------------------------------------------------------

    def submit(self, request: SequenceRequest) -> None:
        """Queue a sequence; one that no slot could hold fails here, alone."""
        sequence = Sequence(request, arrived_at=self._clock())
        if len(sequence.tokens) > self._native.slot_tokens:
            self._events.append(Failed(request.sequence_id, self._too_long(sequence)))
            return
        missing = self.adapters.missing(request)
        if missing is not None:
            self._events.append(Failed(request.sequence_id, missing))
            return
        self._shares.enter(request.project)
        self._sequences[request.sequence_id] = sequence
        self._queue.push(sequence)

    def _too_long(self, sequence: Sequence) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            field="prompt",
            prompt_tokens=len(sequence.tokens),
            context_tokens=self._native.slot_tokens,
        )

    def cancel(self, sequence_id: int, *, arrived_in_step: int, step: int) -> None:
        """End a sequence before `step` begins; `arrived_in_step` is the one that ran when the
        cancel came in."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            return
        phase = sequence.phase
        self._remove(sequence)
        log.info(
            "sequence %d (%s): cancel arrived in step %d, slot freed in step %d",
            sequence_id,
            phase,
            arrived_in_step,
            step,
        )
        self._events.append(Cancelled(sequence_id, phase, arrived_in_step, step))

    def pause(self, sequence_id: int, *, paused: bool) -> None:
        """Leave a sequence out of the plans, or take it in again."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.paused = paused

    def flush(self, flush_id: int) -> None:
        """Forget everything that is only kept for reuse."""
        self._events.append(Flushed(self.name, flush_id, self._placer.forget()))

    # --- snapshots --------------------------------------------------------------------------------

    def snapshot(self, request_id: str, choice: int) -> SavedPrefix | None:
        """What a sequence that runs, waits or was kept has computed, and its origin; None where
        that is nothing."""
        for sequence in self._sequences.values():
            if (sequence.request.request_id, sequence.request.choice) == (request_id, choice):
                return self._placer.snapshot(sequence)
        return self._saved.kept(request_id, choice)

    @property
    def restore_bytes(self) -> int:
        """How large a state `restore` takes."""
        return self._saved.capacity

    def restore(self, prefix: SavedPrefix) -> bool:
        """Take in a state that a later request may go on from; False where it has no room."""
        return self._saved.put(prefix)

    # --- the loop ---------------------------------------------------------------------------------

    def step(self, *, patience_s: float = _GRAMMAR_PATIENCE_S) -> list[Event]:
        """Make one step and return what happened, in order; where only a grammar is missing, wait
        `patience_s` for it."""
        self._expire()
        self._admit()
        self._begin_guided(patience_s)
        ready = [
            sequence
            for sequence in self._running.values()
            if not sequence.paused and not sequence.is_stalled
        ]
        active = self.adapters.take_turn(ready, self._clock())
        for together in apart(active):
            # Nothing fills the holes beside a deterministic sequence: it stays alone.
            shape = NO_FILLERS if together[0].request.deterministic else self._shape
            plan = plan_step(together, self._table.slots, self._plan_limits, shape, self._cost)
            if plan is not None:
                others_wait = len(ready) > plan.num_decoding
                self._carry_out(self._drafter.extend(plan, others_wait=others_wait))
        return self._take_events()

    def _carry_out(self, plan: Plan) -> None:
        started = self._clock()
        self.num_steps += 1
        self._compute(plan.work, plan.rows, plan.fillers)
        seconds, has_prompt = self._clock() - started, plan.prompt_tokens > 0
        self._cost.observe(
            num_decoding=plan.num_decoding, prompt_tokens=plan.prompt_tokens, seconds=seconds
        )
        self._step_times.observe(rows=len(plan.rows), has_prompt=has_prompt, seconds=seconds)

    def _expire(self) -> None:
        now = self._clock()
        expired = self._queue.expired(now)
        expired += [
            sequence
            for sequence in self._running.values()
            if sequence.request.deadline is not None and sequence.request.deadline <= now
        ]
        for sequence in expired:
            self._fail(sequence, DeadlineExpired(phase=sequence.phase))

    def _admit(self) -> None:
        self._events += self._admitter.admit(self._is_left_after_replay)

    def _begin_guided(self, patience_s: float) -> None:
        """Begin the sequences whose grammar has been built meanwhile; the others compute their
        prompts but for the last token."""
        patience = patience_s if self.awaits_grammars else 0.0
        ready = [sequence for sequence in self._running.values() if not sequence.paused]
        for sequence in [sequence for sequence in ready if sequence.awaits_guide]:
            try:
                if sequence.guide is not None and sequence.guide.wait(patience):
                    sequence.awaits_guide = False
                    self._replay(sequence)
            except GuideFailed as problem:
                self._fail_guide(sequence, problem)
            patience = 0.0

    def _is_left_after_replay(self, sequence: Sequence) -> bool:
        """Make the sampler and replay what is resumed, once; whether there is more to do.
        A constrained one is replayed when it has a slot and its grammar is built."""
        if sequence.sampler is None:
            sequence.sampler = self._backend.new_sampler(sequence.request)
            if sequence.request.snapshot_id and not self._recall(sequence, sequence.sampler):
                return False
            if sequence.request.constraint is None:
                self._replay(sequence)
            else:
                sequence.guide = self._backend.new_guide(sequence.request.constraint)
        return sequence.request.sequence_id in self._sequences

    def _recall(self, sequence: Sequence, sampler: Sampler) -> bool:
        """Have a sampler know what it knew when a snapshot was taken; a sequence that the snapshot
        is not of fails."""
        try:
            sampler.recall(hidden_of(sequence, self._saved))
        except (SnapshotNotFound, InvalidField) as error:
            self._fail(sequence, error)
            return False
        return True

    def _replay(self, sequence: Sequence) -> None:
        """Bring sampler and text to where `resumed` ends; end the sequence where it had ended
        already."""
        for token in sequence.request.resumed:
            if sequence.sampler is not None:
                sequence.sampler.accept(token)
            if sequence.guide is not None:
                sequence.guide.take((token,))
            if self._consume(sequence, token) is not None:
                return
        if sequence.guide is not None and self._follow_guide(sequence):
            return
        if sequence.num_output and sequence.num_output >= sequence.request.max_tokens:
            self._finish(sequence, FinishReason.LENGTH)

    # --- computing --------------------------------------------------------------------------------

    def _compute(
        self, work: SequenceOf[Work], rows: SequenceOf[Row], fillers: SequenceOf[Slot]
    ) -> None:
        batch = TokenBatch.of(rows)
        check_native_limits(batch, self._native)
        for sequence, row in work:
            if row.output and sequence.guide is not None:
                sequence.guide.prepare()
        try:
            self._cells.decode(batch)
        except DecodeError as error:
            self._isolate(work, rows, error)
            return
        for slot in fillers:
            self._backend.trim(slot.index, len(slot.tokens))
        for sequence, row in work:
            if sequence.slot is not None:
                sequence.slot.tokens.extend(row.certain)
            if not sequence.is_decoding:
                self._prompt_tokens += len(row.tokens)
        self._sample(work, rows)
        for slot in (self._table.slots[row.slot] for row in rows if row.drafted):
            self._backend.trim(slot.index, len(slot.tokens))

    def _isolate(self, work: SequenceOf[Work], rows: SequenceOf[Row], error: DecodeError) -> None:
        """Undo a failed decode and try again: without drafts where it had some, then its halves,
        down to the row that fails alone."""
        log.warning("decode of %d rows failed with code %d, retrying", len(rows), error.code)
        for row in rows:
            slot = self._table.slots[row.slot]
            if self._backend.slot_length(slot.index) != len(slot.tokens):
                self._roll_back(slot)
        alive = [item for item in work if item.sequence.request.sequence_id in self._running]
        if any(item.row.drafted for item in alive):
            plain = [
                Work(sequence, row._replace(tokens=row.certain, drafted=0))
                for sequence, row in alive
            ]
            self._compute(plain, [item.row for item in plain], ())
            return
        if len(alive) <= 1:
            for item in alive:
                request_id = item.sequence.request.request_id
                self._fail(item.sequence, DecodeFailed(request_id=request_id), keep=False)
            return
        middle = len(alive) // 2
        for half in (alive[:middle], alive[middle:]):
            self._compute(half, [item.row for item in half], ())

    def _roll_back(self, slot: Slot) -> None:
        if self._backend.trim(slot.index, len(slot.tokens)):
            return
        self._backend.trim(slot.index, 0)
        owner = self._sequences.get(slot.owner) if slot.owner is not None else None
        del slot.tokens[:]
        if owner is not None:
            self._fail(owner, DecodeFailed(request_id=owner.request.request_id), keep=False)

    def _sample(self, work: SequenceOf[Work], rows: SequenceOf[Row]) -> None:
        first_output = _first_outputs(rows)
        chosen: list[Work] = []
        tasks: list[SampleTask] = []
        for item in work:
            sequence, row = item
            if not row.output:
                continue
            if sequence.request.max_tokens == 0:
                sequence.first_token_at = self._clock()
                self._finish(sequence, FinishReason.LENGTH)
                continue
            task = self._task(sequence, first_output[row.slot])
            if task is not None:
                chosen.append(item)
                tasks.append(task)
        if not tasks:
            return
        for item, task, sampled in zip(chosen, tasks, self._backend.sample(tasks), strict=True):
            self._take(item.sequence, sampled)
            if item.row.drafted and item.sequence.request.max_draft:
                self._verify(item, task.row)

    def _task(self, sequence: Sequence, output: int) -> SampleTask | None:
        """What to sample from an output row; None where the sequence failed instead."""
        if sequence.sampler is None:
            return None
        try:
            mask = sequence.guide.mask() if sequence.guide is not None else None
        except GuideFailed as problem:
            self._fail_guide(sequence, problem)
            return None
        return SampleTask(output, sequence.sampler, sequence.num_output, mask)

    def _verify(self, item: Work, first_output: int) -> None:
        """Sample on, one position after the other, while a draft is what the sequence says."""
        sequence, row = item
        first_token = row.start + len(row.certain)
        while confirm(sequence, row):
            task = self._task(sequence, first_output + len(sequence.tokens) - first_token)
            if task is None:
                return
            (sampled,) = self._backend.sample([task])
            self._take(sequence, sampled)

    def _take(self, sequence: Sequence, sampled: Sampled | SampleFailed) -> None:
        if isinstance(sampled, SampleFailed):
            self._fail(sequence, DecodeFailed(request_id=sequence.request.request_id))
            return
        if sequence.first_token_at is None:
            sequence.first_token_at = self._clock()
        try:
            if sequence.guide is not None:
                sequence.guide.take((sampled.token,))
            if self._append(sequence, sampled):
                return
            if sequence.guide is not None and self._follow_guide(sequence):
                return
        except GuideFailed as problem:
            self._fail_guide(sequence, problem)
            return
        self._end_if_full(sequence)

    def _append(self, sequence: Sequence, sampled: Sampled) -> bool:
        """Add an output token; returns whether the sequence ended with it."""
        self._output_tokens += 1
        self._shares.charge(sequence.request.project, 1)
        sequence.tokens.append(sampled.token)
        if sequence.sampler is not None:
            sequence.sampler.accept(sampled.token)
        return self._consume(sequence, sampled.token, sampled) is not None

    def _follow_guide(self, sequence: Sequence) -> bool:
        """Add the tokens about which the constraint leaves no choice, to be computed in one row;
        returns whether the sequence ended.

        A request for log probabilities has every token sampled: only then its logits are there.
        """
        request, guide = sequence.request, sequence.guide
        if guide is None:
            return False
        room = min(request.max_tokens - sequence.num_output, self._left_in_slot(sequence))
        limit = min(MAX_FORCED, room) if request.top_logprobs is None else 0
        for token in guide.forced(limit):
            if self._append(sequence, Sampled(token, None)):
                return True
        if guide.is_over:
            self._finish(sequence, FinishReason.STOP)
            return True
        return False

    def _left_in_slot(self, sequence: Sequence) -> int:
        return self._native.slot_tokens - len(sequence.tokens)

    def _end_if_full(self, sequence: Sequence) -> None:
        full = len(sequence.tokens) >= self._native.slot_tokens
        if full or sequence.num_output >= sequence.request.max_tokens:
            self._finish(sequence, FinishReason.LENGTH)

    def _consume(
        self, sequence: Sequence, token: int, sampled: Sampled | None = None
    ) -> FinishReason | None:
        """Turn an output token into text and stop where it says so; without `sampled` nothing is
        emitted."""
        request = sequence.request
        ends = token in request.stop_tokens or (
            not request.ignore_eos and self._backend.is_end(token)
        )
        piece = b"" if ends and not request.special_tokens else self._piece(request, token)
        text, stop = sequence.text.push(piece)
        if sampled is not None:
            logprobs = (sampled.logprob,) if sampled.logprob is not None else ()
            self._tell(Delta(request.sequence_id, text, (token,), logprobs))
        if stop is not None:
            self._finish(sequence, FinishReason.STOP, stop_text=stop)
        elif ends:
            self._finish(sequence, FinishReason.STOP, stop_token=token)
        else:
            return None
        return FinishReason.STOP

    def _tell(self, delta: Delta) -> None:
        """Emit a delta, as one with what its sequence gained just before: a forced run must not
        look like many unread events to a reader's limit."""
        last = self._events[-1] if self._events else None
        if isinstance(last, Delta) and last.sequence_id == delta.sequence_id:
            delta = Delta(
                delta.sequence_id,
                last.text + delta.text,
                last.tokens + delta.tokens,
                last.logprobs + delta.logprobs,
            )
            self._events.pop()
        self._events.append(delta)

    def _piece(self, request: SequenceRequest, token: int) -> bytes:
        special = request.special_tokens or token in request.visible_tokens
        return self._backend.piece(token, special=special)

    # --- endings ----------------------------------------------------------------------------------

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        stop_text: str | None = None,
        stop_token: int | None = None,
    ) -> None:
        sequence_id = sequence.request.sequence_id
        if stop_text is None:
            text, stop_text = sequence.text.finish()
            if text:
                self._tell(Delta(sequence_id, text, (), ()))
            if stop_text is not None:
                reason = FinishReason.STOP
        self._remove(sequence)
        now = self._clock()
        first = sequence.first_token_at if sequence.first_token_at is not None else now
        timings = Timings(
            queue_s=sequence.started_at - sequence.arrived_at,
            prefill_s=first - sequence.started_at,
            decode_s=now - first,
        )
        self._events.append(
            Finished(
                sequence_id,
                reason,
                stop_text,
                stop_token,
                sequence.num_output,
                timings,
                sequence.guesses.num_drafted,
                sequence.guesses.num_accepted,
            )
        )

    def _fail_guide(self, sequence: Sequence, problem: GuideFailed) -> None:
        constraint = sequence.request.constraint
        field = constraint.field if constraint is not None else ""
        self._fail(sequence, GrammarInvalid(field=field, problem=str(problem)))

    def _fail(self, sequence: Sequence, error: DomainError, *, keep: bool = True) -> None:
        self._remove(sequence, keep=keep)
        self._events.append(Failed(sequence.request.sequence_id, error))

    def _remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Forget a sequence in whatever phase; its slot is free for the next step."""
        sequence_id = sequence.request.sequence_id
        del self._sequences[sequence_id]
        self._drafter.judge(sequence)
        self._shares.leave(sequence.request.project)
        if sequence.sampler is not None:
            sequence.sampler.close()
        if sequence.guide is not None:
            sequence.guide.close()
        if sequence.slot is None:
            self._queue.remove(sequence)
        else:
            del self._running[sequence_id]
        self._placer.end(sequence, keep=keep)

    def _take_events(self) -> list[Event]:
        now = self._clock()
        if now - self._load_sent_at >= LOAD_INTERVAL_S or (self._events and not self._running):
            self._load_sent_at = now
            self._events.append(self._load())
        events, self._events = self._events, []
        return events

    def _load(self) -> ModelLoad:
        return ModelLoad(
            model=self.name,
            num_running=len(self._running),
            num_waiting=len(self._queue),
            num_used_cells=self._table.num_used_cells,
            num_idle_cells=self._table.num_idle_cells,
            num_steps=self.num_steps,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._admitter.cached_tokens,
            output_tokens=self._output_tokens,
            num_snapshots=len(self._saved),
            snapshot_bytes=self._saved.num_bytes,
            num_followers=self._followers.num_holding,
            num_preempted=sum(sequence.saved is not None for sequence in self._queue),
            num_preemptions=self._admitter.num_preemptions,
            draft_tokens=self._drafter.num_drafted,
            accepted_draft_tokens=self._drafter.num_accepted,
            step_times=self._step_times.histograms(),
        )

    def check_integrity(self) -> None:
        """Compare what the engine believes with the native cache. Raises `IntegrityError`; tests
        call it every step."""
        check_books(self._table, self._backend, self._running, self._queue, self._saved)
        if any(self.adapters.missing(item.request) for item in self._sequences.values()):
            raise IntegrityError("an adapter is gone while a sequence uses it")
        if not self._placer.is_settled:
            raise IntegrityError("a copy was planned and never queued")
        live = len(self._running) + len(self._queue)
        if {*self._running, *self._queue.ids} != set(self._sequences) or live != len(
            self._sequences
        ):
            raise IntegrityError("a sequence is lost, or both waits and runs")


def _first_outputs(rows: Iterable[Row]) -> dict[int, int]:
    """By slot, the number that llama.cpp gives to the first logits of its row."""
    numbers, count = {}, 0
    for row in rows:
        numbers[row.slot] = count
        count += row.num_outputs
    return numbers
