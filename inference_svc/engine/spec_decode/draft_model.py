"""Drafts of a small model with the same vocabulary, which computes the likeliest next tokens.

It has a KV cache of its own, with a slot for each one of the engine. A slot keeps the tokens that
the sequence in the engine's slot has too; others are removed, and those that it lacks are computed
before the next draft, a long prompt in chunks over several steps. So nothing has to be told to it
when sequences start, move, are preempted or end.
"""

import logging
from array import array
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Final, NamedTuple, Protocol

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.batch import NativeLimits, Row, TokenBatch, check_native_limits
from inference_svc.engine.cost_model.step_time import StepTimeModel
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.slots import common_prefix

log = logging.getLogger(__name__)
_MIN_CHUNK: Final = 16
"""Tokens of a prompt that a step computes at least, however slow the model is."""
_MIN_COPIED: Final = 32
"""Tokens that another slot must have beyond those of its own for a sequence to copy them."""


class DraftBackend(Protocol):
    """What a draft needs of a loaded model; methods are those of `Backend`."""

    @property
    def limits(self) -> NativeLimits:
        """Limits on the size of a batch; it has a row of logits for each slot."""

    def decode(self, batch: TokenBatch) -> None:
        """Compute a batch. Raises `DecodeError`."""

    def likeliest_tokens(self, count: int) -> list[int]:
        """The likeliest next tokens of the first `count` outputs of the last decode."""

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Queue a copy of a slot into an empty one."""

    def trim(self, slot: int, length: int) -> bool:
        """Truncate a slot; False if it cannot be truncated to this length, but to 0."""

    def slot_length(self, slot: int) -> int:
        """Number of tokens in a slot."""

    @property
    def used_cells(self) -> int:
        """Number of cells in use by all slots; a cell shared by several slots counts once."""

    def is_eog(self, token: int) -> bool:
        """Whether this is an end-of-generation token."""


class _Slot:
    """The tokens whose cells are in a slot. The first `num_equal` are those of the `owner`, a
    sequence; `key` is the cache key under which they were computed."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self.key = b""
        self.owner: int | None = None
        self.num_equal = 0


class Wanted(NamedTuple):
    """A sequence and the most tokens to draft for it."""

    sequence: Sequence
    max_tokens: int


class DraftModel:
    """Drafts for the sequences of an engine, and predicts the time that this takes."""

    def __init__(
        self,
        backend: DraftBackend,
        step_times: Mapping[int, float],
        clock: Callable[[], float],
    ) -> None:
        """`step_times` are seconds of a step by rows, as measured by the warm-up."""
        self._backend = backend
        self._limits = backend.limits
        self._clock = clock
        self._step_time = StepTimeModel(step_times, backend.limits)
        self._slots = [_Slot() for _ in range(backend.limits.slots)]
        self._has_failed = False

    def can_draft(self, sequence: Sequence, count: int) -> bool:
        """Whether it can draft this many tokens: it cannot read pictures and sounds."""
        if self._has_failed or sequence.slot is None or sequence.request.media:
            return False
        return len(sequence.tokens) + count <= self._limits.slot_tokens

    def step_s(self, rows: int) -> float:
        """Seconds in which a token of each row is drafted; 0 if nothing is measured."""
        return self._step_time.step_s(rows)

    def start_s(self, sequence: Sequence) -> float:
        """Seconds to compute what must be there before a draft, such as the prompt, spread over as
        many steps as the sequence has output tokens: it is expected to last as long again."""
        missing_s = self._step_time.prefill_s(self._num_missing(sequence) - 1)
        return missing_s / max(sequence.num_output, 1)

    @property
    def is_consistent(self) -> bool:
        """Whether its slots have as many cells as tokens."""
        return all(
            self._backend.slot_length(index) == len(slot.tokens)
            for index, slot in enumerate(self._slots)
        )

    def clear(self) -> None:
        """Remove all tokens. Those of running sequences are computed again."""
        for index, slot in enumerate(self._slots):
            self._cut(index, 0)
            slot.owner = None

    def draft(self, wanted: SequenceOf[Wanted], *, patience_s: float) -> "list[array[int]]":
        """Draft the next tokens of sequences, which are in the order of their slots.

        Prompts that are not computed yet may take about `patience_s`; a draft is empty until that
        of its sequence is complete. After a failed decode there are no more drafts.
        """
        try:
            return self._draft(wanted, patience_s)
        except DecodeError as error:
            log.error("the draft model fails (llama.cpp code %d) and is not used again", error.code)
            self._has_failed = True
            self.clear()
            return [array("i") for _ in wanted]

    def _draft(self, wanted: SequenceOf[Wanted], patience_s: float) -> "list[array[int]]":
        rows = self._first_rows([sequence for sequence, _ in wanted], patience_s)
        drafts = [array("i") for _ in wanted]
        while rows and self._has_room(rows):
            nexts = iter(self._decode(rows))
            drafting: list[Row] = []
            by_slot = {row.slot: row for row in rows if row.output}
            for (sequence, max_tokens), draft in zip(wanted, drafts, strict=True):
                row = by_slot.get(_slot_index(sequence))
                if row is None:
                    continue
                draft.append(token := next(nexts))
                if len(draft) < max_tokens and not self._backend.is_eog(token):
                    drafting.append(Row(row.slot, row.start + len(row.tokens), (token,), True))
            rows = drafting
        return drafts

    def _first_rows(self, sequences: SequenceOf[Sequence], patience_s: float) -> list[Row]:
        """The rows with all tokens that the slots lack, or the next chunk of a prompt."""
        per_token_s = self._step_time.prefill_s(1)
        num_prefill = self._limits.pass_tokens
        if per_token_s:
            num_prefill = min(num_prefill, max(int(patience_s / per_token_s), _MIN_CHUNK))
        num_prefill = min(num_prefill, self._limits.batch_tokens - len(sequences))
        starts = [self._align(_slot_index(each), each) for each in sequences]
        rows: list[Row] = []
        missing = [len(each.tokens) - at for each, at in zip(sequences, starts, strict=True)]
        for i in sorted(range(len(sequences)), key=missing.__getitem__):
            count = min(missing[i], 1 + num_prefill)
            if count == 1 < missing[i]:
                break  # other prompts are computed first
            num_prefill -= count - 1
            tokens = sequences[i].tokens[starts[i] : starts[i] + count]
            row = Row(_slot_index(sequences[i]), starts[i], tokens, output=count == missing[i])
            rows.append(row)
        return sorted(rows, key=lambda row: row.slot)

    def _decode(self, rows: SequenceOf[Row]) -> list[int]:
        """Compute rows. Returns the likeliest token after each one with an output."""
        batch = TokenBatch.of(rows)
        check_native_limits(batch, self._limits)
        started = self._clock()
        self._backend.decode(batch)
        tokens = self._backend.likeliest_tokens(sum(row.output for row in rows))
        self._observe(rows, self._clock() - started)
        for row in rows:
            self._slots[row.slot].tokens.extend(row.tokens)
        return tokens

    def _observe(self, rows: SequenceOf[Row], seconds: float) -> None:
        prompt_tokens = sum(len(row.tokens) for row in rows) - len(rows)
        if prompt_tokens:
            self._step_time.observe_prefill(
                num_decoding=len(rows), prompt_tokens=prompt_tokens, seconds=seconds
            )
        else:
            self._step_time.observe_decode(rows=len(rows), drafted=0, seconds=seconds)

    def _num_missing(self, sequence: Sequence) -> int:
        """Tokens to compute for the first token of a draft; those of another slot may be copied."""
        slot = self._slots[_slot_index(sequence)]
        known = slot.num_equal if slot.owner == sequence.request.sequence_id else 0
        equal = known + _num_equal(slot.tokens[known:], sequence.tokens[known:-1])
        return len(sequence.tokens) - (equal if slot.key == sequence.request.cache_key else 0)

    def _align(self, index: int, sequence: Sequence) -> int:
        """Remove the tokens of a slot that the sequence does not have. Returns those that are left,
        without the last one of the sequence, whose logits are needed."""
        slot, request = self._slots[index], sequence.request
        if slot.owner != request.sequence_id:
            if slot.key != request.cache_key:
                self._cut(index, 0)
            slot.owner, slot.key, slot.num_equal = request.sequence_id, request.cache_key, 0
        if len(sequence.tokens) - self._extend_equal(index, sequence) > _MIN_COPIED:
            self._copy_from_other(index, sequence)
        return slot.num_equal

    def _extend_equal(self, index: int, sequence: Sequence) -> int:
        slot = self._slots[index]
        known = slot.num_equal
        self._cut(index, known + _num_equal(slot.tokens[known:], sequence.tokens[known:-1]))
        slot.num_equal = len(slot.tokens)
        return slot.num_equal

    def _copy_from_other(self, index: int, sequence: Sequence) -> None:
        """Copy the tokens of another slot if that has more of the sequence, as after a move or of
        another choice. Only those of its own cache key are used."""
        slot = self._slots[index]
        equal = {
            i: _num_equal(other.tokens, sequence.tokens[:-1])
            for i, other in enumerate(self._slots)
            if other.key == slot.key
        }
        source = max(equal, key=lambda i: equal[i])
        if equal[source] - equal[index] < _MIN_COPIED:
            return
        self._cut(index, 0)
        self._backend.copy(source, index, equal[source])
        slot.tokens = self._slots[source].tokens[:]
        self._cut(index, equal[source])
        slot.num_equal = len(slot.tokens)

    def _cut(self, index: int, length: int) -> None:
        """Remove all but the first tokens of a slot, or all if the model cannot."""
        slot = self._slots[index]
        if length >= len(slot.tokens) and self._backend.slot_length(index) <= length:
            return
        if not self._backend.trim(index, length):
            self._backend.trim(index, length := 0)
        del slot.tokens[length:]
        slot.num_equal = min(slot.num_equal, length)

    def _has_room(self, rows: SequenceOf[Row]) -> bool:
        """Whether the cells that all slots share suffice, if need be without those of others."""
        if self._limits.cells is None:
            return True
        needed, used = sum(len(row.tokens) for row in rows), {row.slot for row in rows}
        for index in range(len(self._slots)):
            if self._backend.used_cells + needed <= self._limits.cells:
                return True
            if index not in used:
                self._cut(index, 0)
        return self._backend.used_cells + needed <= self._limits.cells


def _slot_index(sequence: Sequence) -> int:
    if sequence.slot is None:
        raise ValueError(f"sequence {sequence.request.sequence_id} has no slot")
    return sequence.slot.index


def _num_equal(left: "array[int]", right: "array[int]") -> int:
    return common_prefix(left, right, limit=len(left))
