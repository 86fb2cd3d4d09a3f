"""Executes a plan: encode, decode, score prompts, sample, roll back.

A decode call that fails is retried without drafts, then in halves, until the failing row is alone;
other sequences are not affected.
"""

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf

from inference_svc.engine.backend import DecodeError, EncoderInput, SampleTask, ScoreTask
from inference_svc.engine.batch import Row, TokenBatch, check_native_limits
from inference_svc.engine.constraint import GuideError, single_token_mask
from inference_svc.engine.engine_parts import EngineParts
from inference_svc.engine.events import ChosenLogprob, FinishReason, PromptToken, PromptTokens
from inference_svc.engine.media import Vectors, VectorsUnreadable, read_row
from inference_svc.engine.output_processor import OutputProcessor
from inference_svc.engine.sequence import Plan, Sequence, Work
from inference_svc.engine.slots import Slot
from inference_svc.engine.spec_decode.drafter import accept_draft
from svc_kit.errors import DecodeFailed

log = logging.getLogger(__name__)


class Executor:
    """Computes and samples the rows of plans; `prompt_tokens` counts computed prompt tokens."""

    def __init__(self, state: EngineParts, output_processor: OutputProcessor) -> None:
        self.prompt_tokens = 0
        self._backend = state.backend
        self._limits = state.backend.limits
        self._copier = state.copier
        self._table = state.table
        self._sequences = state.sequences
        self._clock = state.clock
        self._output_processor = output_processor
        self._encoded: dict[int, int] = {}  # by slot, the sequence whose source is encoded

    def execute(self, plan: Plan) -> bool:
        """Execute a plan; return False if it took more than the one planned decode call."""
        return self._compute(plan.work, plan.rows, plan.fillers)

    def _compute(
        self, work: SequenceOf[Work], rows: SequenceOf[Row], fillers: SequenceOf[Slot]
    ) -> bool:
        vectors: list[Vectors] = []
        if rows[0].spans:
            work, vectors = self._read_vectors(work)
            rows = [item.row for item in work]
            if not rows:
                return False
        batch = TokenBatch.of(rows, vectors)
        check_native_limits(batch, self._limits)
        self._prepare_guides(work)
        try:
            if self._limits.source_tokens is not None:
                self._encode(work)
            self._copier.decode(batch)
        except DecodeError as error:
            self._isolate(work, rows, error)
            return False
        for slot in fillers:
            self._cut_to_tokens(slot)
        for sequence, row in work:
            if sequence.slot is not None:
                sequence.slot.tokens.extend(row.certain)
            if not sequence.is_decoding:
                self.prompt_tokens += len(row.tokens)
        first_outputs = _first_outputs(rows)
        self._score(work, first_outputs)
        self._sample(work, first_outputs)
        self._cut_drafts(rows)
        return True

    @staticmethod
    def _prepare_guides(work: SequenceOf[Work]) -> None:
        """Let other threads compute the masks of the rows with output during the decode."""
        for sequence, row in work:
            if row.output and sequence.guide is not None:
                sequence.guide.prepare()

    def _read_vectors(self, work: SequenceOf[Work]) -> tuple[list[Work], list[Vectors]]:
        """Read the vectors of rows. A sequence whose file is missing or too short is failed."""
        readable: list[Work] = []
        vectors: list[Vectors] = []
        for item in work:
            row, width = item.row, self._limits.vector_width
            try:
                vectors.append(read_row(row.spans, row.start, len(row.tokens), width))
                readable.append(item)
            except VectorsUnreadable as problem:
                log.error("the vectors of a picture or sound cannot be read: %s", problem)
                request_id = item.sequence.request.request_id
                self._sequences.fail(item.sequence, DecodeFailed(request_id=request_id))
        return readable, vectors

    def _encode(self, work: Iterable[Work]) -> None:
        """Encode if the source of one of the sequences is missing. Raises `DecodeError`.

        llama.cpp has the output of one encode, which all decodes attend to, each sequence to its
        own part. So when a sequence joins, the sources of all running sequences are encoded again;
        those that have ended stay in the output until then.
        """
        encoded = self._encoded
        if all(encoded.get(row.slot) == item.request.sequence_id for item, row in work):
            return
        requests = {
            sequence.slot.index: sequence.request
            for sequence in self._sequences.running.values()
            if sequence.slot is not None
        }
        encoded.clear()
        self._backend.encode(
            [EncoderInput(slot, requests[slot].source) for slot in sorted(requests)]
        )
        encoded.update((slot, each.sequence_id) for slot, each in requests.items())

    # --- failed decodes ---------------------------------------------------------------------------

    def _isolate(self, work: SequenceOf[Work], rows: SequenceOf[Row], error: DecodeError) -> None:
        """Roll back a failed decode and retry it: without drafts if it had any, then in halves.

        A sequence whose row fails alone is failed. One that lost computed cells is planned again.
        """
        log.warning("decode of %d rows failed with code %d, retrying", len(rows), error.code)
        for row in rows:
            slot = self._table.slots[row.slot]
            if self._backend.slot_length(slot.index) != len(slot.tokens):
                self._roll_back(slot)
        alive = [item for item in work if item.sequence in self._sequences]
        if any(item.row.drafted for item in alive):
            undrafted = [
                Work(sequence, row._replace(tokens=row.certain, drafted=0))
                for sequence, row in alive
            ]
            self._compute(undrafted, [item.row for item in undrafted], ())
            return
        if len(alive) <= 1:
            for item in alive:
                self._fail(item.sequence)
            return
        alive = [item for item in alive if item.row.start == item.sequence.num_computed]
        middle = len(alive) // 2
        for half in filter(None, (alive[:middle], alive[middle:])):
            self._compute(half, [item.row for item in half], ())

    def _roll_back(self, slot: Slot) -> None:
        """Remove the cells of a failed decode; a chunk may have lost the cells before them too."""
        if (length := self._backend.slot_length(slot.index)) < len(slot.tokens):
            if not self._backend.can_trim_to(slot.index, length):
                self._backend.trim(slot.index, length := 0)
            del slot.tokens[length:]
            return
        self._cut_to_tokens(slot)

    def _cut_drafts(self, rows: SequenceOf[Row]) -> None:
        """Remove the cells of rejected draft tokens."""
        if rows[0].drafted:  # then all are
            for row in rows:
                self._cut_to_tokens(self._table.slots[row.slot])

    def _cut_to_tokens(self, slot: Slot) -> None:
        """Remove the cells after the tokens of a slot. If the model cannot, empty the slot and fail
        its sequence."""
        if self._backend.trim(slot.index, len(slot.tokens)):
            return
        self._backend.trim(slot.index, 0)
        owner = self._sequences.by_id.get(slot.owner) if slot.owner is not None else None
        del slot.tokens[:]
        if owner is not None:
            self._fail(owner)

    def _fail(self, sequence: Sequence) -> None:
        error = DecodeFailed(request_id=sequence.request.request_id)
        self._sequences.fail(sequence, error, keep=False)

    # --- log probabilities of prompts -------------------------------------------------------------

    def _score(self, work: Iterable[Work], first_outputs: Mapping[int, int]) -> None:
        """Send `PromptTokens` for the rows of sequences that want log probabilities of their
        prompts. Each token is sent once, also if its cells are lost and computed again."""
        for item in work:
            if not item.sequence.is_scored:
                self._score_row(item, first_outputs[item.row.slot])

    def _score_row(self, item: Work, first_output: int) -> None:
        sequence, row = item
        request, first = sequence.request, sequence.num_scored
        end = min(row.start + len(row.tokens) + 1, len(request.prompt))
        if end <= first:
            return
        numbers = range(first, end)
        tasks = {
            i: ScoreTask(
                first_output + i - 1 - row.start, request.prompt[i], request.prompt_logprobs or 0
            )
            for i in numbers
            if row.scored and i > 0 and request.prompt[i] >= 0
        }
        logprobs = dict(zip(tasks, self._backend.score(list(tasks.values())), strict=True))
        tokens = tuple(self._prompt_token(request.prompt[i], logprobs.get(i)) for i in numbers)
        sequence.num_scored = end
        self._sequences.events.append(PromptTokens(request.sequence_id, tokens))

    def _prompt_token(self, token: int, logprob: ChosenLogprob | None) -> PromptToken:
        piece = self._backend.piece(token, special=True) if token >= 0 else b""
        return PromptToken(token, piece, logprob)

    # --- sampling ---------------------------------------------------------------------------------

    def _sample(self, work: SequenceOf[Work], first_outputs: Mapping[int, int]) -> None:
        chosen: list[Work] = []
        tasks: list[SampleTask] = []
        for item in work:
            sequence, row = item
            if not row.output:
                continue
            if sequence.request.max_tokens == 0:
                sequence.first_token_at = self._clock()
                self._output_processor.finish(sequence, FinishReason.LENGTH)
                continue
            before = len(row.tokens) - 1 if row.scored else 0
            task = self._task(sequence, first_outputs[row.slot] + before)
            if task is not None:
                chosen.append(item)
                tasks.append(task)
        if not tasks:
            return
        for item, task, sampled in zip(chosen, tasks, self._backend.sample(tasks), strict=True):
            self._output_processor.process(item.sequence, sampled)
            if item.row.drafted and item.sequence.request.max_draft:
                self._verify(item, task.row)

    def _task(self, sequence: Sequence, output: int) -> SampleTask | None:
        """Create the sampling task of an output row; None if the sequence has failed.

        The tokens that end the reasoning are sampled too, so that they have log probabilities.
        """
        if sequence.sampler is None:
            return None
        try:
            mask = sequence.guide.mask() if sequence.guide is not None else None
        except GuideError as problem:
            self._sequences.fail_guide(sequence, problem)
            return None
        if (forced := sequence.output.reasoning.forced) is not None:
            mask = single_token_mask(forced, self._limits.vocabulary_size)
        return SampleTask(output, sequence.sampler, sequence.num_output, mask)

    def _verify(self, item: Work, first_output: int) -> None:
        """Sample position after position while the draft is accepted."""
        sequence, row = item
        first_token = row.start + len(row.certain)
        while accept_draft(sequence, row):
            task = self._task(sequence, first_output + len(sequence.tokens) - first_token)
            if task is None:
                return
            (sampled,) = self._backend.sample([task])
            self._output_processor.process(sequence, sampled)


def _first_outputs(rows: Iterable[Row]) -> dict[int, int]:
    """Return the index of the first logits of each row in llama.cpp's output, by slot."""
    numbers, count = {}, 0
    for row in rows:
        numbers[row.slot] = count
        count += row.num_outputs
    return numbers
