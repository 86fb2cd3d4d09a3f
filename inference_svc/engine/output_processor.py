"""Appends output tokens, detokenizes them, and detects stop conditions.

Output tokens are sampled, forced by a constraint, or accepted from a draft.
"""

from collections.abc import Iterable

from inference_svc.engine.backend import SampledToken, SampleFailure, Sampler
from inference_svc.engine.constraint import MAX_FORCED, GuideError
from inference_svc.engine.engine_parts import EngineParts
from inference_svc.engine.events import Delta, FinishReason, Timings
from inference_svc.engine.kv_cache.origin import restored_sampler_state
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import DecodeFailed, DomainError, InvalidField, SnapshotNotFound


class OutputProcessor:
    """Processes the output of sequences; `output_tokens` counts the tokens."""

    def __init__(self, state: EngineParts) -> None:
        self.output_tokens = 0
        self._backend = state.backend
        self._slot_tokens = state.backend.limits.slot_tokens
        self._sequences = state.sequences
        self._shares = state.sequences.queue.shares
        self._clock = state.clock

    def process(self, sequence: Sequence, sampled: SampledToken | SampleFailure) -> None:
        """Append the sampled token and the tokens that a constraint forces after it."""
        if isinstance(sampled, SampleFailure):
            self._sequences.fail(sequence, _sampling_error(sequence.request))
            return
        if sequence.first_token_at is None:
            sequence.first_token_at = self._clock()
        try:
            if sequence.guide is not None:
                sequence.guide.accept((sampled.token,))
            if self._append(sequence, sampled):
                return
            if sequence.guide is not None and self._append_forced(sequence):
                return
        except GuideError as problem:
            self._sequences.fail_guide(sequence, problem)
            return
        self._end_if_full(sequence)

    def replay(self, sequence: Sequence) -> None:
        """Replay the resumed tokens through sampler, guide and detokenizer.

        Finishes the sequence if they already end it. Raises `GuideError`.
        """
        for token in sequence.request.resumed:
            if sequence.sampler is not None:
                sequence.sampler.accept(token)
            if sequence.guide is not None:
                sequence.guide.accept((token,))
            if sequence.output.add(token, self._backend).is_end:
                self.finish(sequence, FinishReason.STOP)
                return
        if sequence.guide is not None and self._append_forced(sequence):
            return
        if sequence.num_output and sequence.num_output >= sequence.request.max_tokens:
            self.finish(sequence, FinishReason.LENGTH)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Finish a sequence; the text that the detokenizer has buffered is sent first."""
        self._sequences.remove(sequence)  # counts the drafts of its last step
        text, finished = sequence.output.finish(
            reason,
            sequence.num_output,
            self._timings(sequence),
            by_ngram=sequence.ngram_proposals.drafted,
            by_model=sequence.model_proposals.drafted,
        )
        if text:
            self._emit(Delta(finished.sequence_id, (text,), (), (), self._clock()))
        self._sequences.events.append(finished)

    def _timings(self, sequence: Sequence) -> Timings:
        now = self._clock()
        first = sequence.first_token_at if sequence.first_token_at is not None else now
        return Timings(
            queue_s=sequence.started_at - sequence.arrived_at,
            prefill_s=first - sequence.started_at,
            decode_s=now - first,
        )

    def _append(self, sequence: Sequence, sampled: SampledToken) -> bool:
        """Append and emit an output token; return whether the sequence ended with it."""
        token, logprob = sampled
        self.output_tokens += 1
        self._shares.charge(sequence.request.project, 1)
        sequence.tokens.append(token)
        if sequence.sampler is not None:
            sequence.sampler.accept(token)
        added = sequence.output.add(token, self._backend)
        logprobs = (logprob._replace(text=added.piece),) if logprob is not None else ()
        sequence_id = sequence.request.sequence_id
        self._emit(Delta(sequence_id, (added.text,), (token,), logprobs, self._clock()))
        if added.is_end:
            self.finish(sequence, FinishReason.STOP)
        return added.is_end

    def _append_forced(self, sequence: Sequence) -> bool:
        """Append the tokens that the constraint forces; return whether the sequence ended.

        They are computed in one row. With log probabilities no token is forced, since only sampled
        tokens have logits.
        """
        request, guide = sequence.request, sequence.guide
        if guide is None:
            return False
        available = self._slot_tokens - len(sequence.tokens)
        limit = min(MAX_FORCED, request.max_tokens - sequence.num_output, available)
        if request.top_logprobs is not None:
            limit = 0
        for token in guide.forced_tokens(limit):
            if self._append(sequence, SampledToken(token, None)):
                return True
        if guide.is_finished:
            self.finish(sequence, FinishReason.STOP)
            return True
        return False

    def _end_if_full(self, sequence: Sequence) -> None:
        if len(sequence.tokens) >= min(sequence.max_length, self._slot_tokens):
            self.finish(sequence, FinishReason.LENGTH)

    def _emit(self, delta: Delta) -> None:
        """Emit a delta, joined with the previous event if that is a delta of the same sequence.

        Otherwise a run of forced tokens would count as many unread events of its stream.
        """
        events = self._sequences.events
        last = events[-1] if events else None
        if isinstance(last, Delta) and last.sequence_id == delta.sequence_id:
            events[-1] = last.join(delta)
        else:
            events.append(delta)


class SequencePreparer:
    """Creates samplers and guides, and replays resumed tokens."""

    def __init__(self, state: EngineParts, output_processor: OutputProcessor) -> None:
        self._backend = state.backend
        self._sequences = state.sequences
        self._prefix_cache = state.prefix_cache
        self._output_processor = output_processor

    def prepare(self, sequence: Sequence) -> bool:
        """Create the sampler and replay resumed tokens, once; return whether the sequence goes on.

        A constrained sequence is replayed when its grammar is built.
        """
        if sequence.sampler is None:
            sequence.sampler = self._backend.new_sampler(sequence.request)
            if sequence.request.snapshot_id and not self._restore_sampler(
                sequence, sequence.sampler
            ):
                return False
            if sequence.request.constraint is None:
                self._output_processor.replay(sequence)
            else:
                sequence.guide = self._backend.new_guide(sequence.request.constraint)
        return sequence in self._sequences

    def _restore_sampler(self, sequence: Sequence, sampler: Sampler) -> bool:
        """Restore a sampler's state from the snapshot.

        Fails the sequence and returns False if the snapshot belongs to another sequence.
        """
        try:
            sampler.restore_state(restored_sampler_state(sequence, self._prefix_cache))
        except (SnapshotNotFound, InvalidField) as error:
            self._sequences.fail(sequence, error)
            return False
        return True

    def begin_guided(self, running: Iterable[Sequence], patience_s: float) -> None:
        """Replay the sequences whose grammar has been built.

        Waits up to `patience_s` seconds for the grammar of the first one.
        """
        for sequence in running:
            try:
                if sequence.guide is not None and sequence.guide.wait(patience_s):
                    sequence.awaits_grammar = False
                    self._output_processor.replay(sequence)
            except GuideError as problem:
                self._sequences.fail_guide(sequence, problem)
            patience_s = 0.0


def _sampling_error(request: SequenceRequest) -> DomainError:
    """Why no token could be sampled: the logits are not finite, for which adapters, whose files and
    scales are the caller's, are the likely reason."""
    if request.adapters:
        problem = (
            "with them the model computes no finite values; remove them, or lower their scales"
        )
        return InvalidField(field="adapters", problem=problem)
    return DecodeFailed(request_id=request.request_id)
