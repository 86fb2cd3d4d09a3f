"""Plans one decode call: functions from running sequences to rows.

A decoding sequence gets a row with its last token and any tokens that its constraint forces after
it. Prompts are computed in chunks, their vectors in calls of their own, with the short texts beside
them. Idle slots get filler rows where these make the call faster.
"""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import groupby
from typing import Final

from inference_svc.engine.batch import NativeLimits, Row
from inference_svc.engine.cost_model.step_time import BLOCK
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine_parts import EngineParts
from inference_svc.engine.media import MediaSpan
from inference_svc.engine.scheduler.policy import (
    PendingPrompt,
    Policy,
    prefill_budget,
    priority_chunks,
)
from inference_svc.engine.sequence import Plan, Sequence, Work
from inference_svc.engine.slots import Slot

_SCORED_COST: Final = 2
"""A prompt token with logits counts as this many without, since the output layer and the softmax
are computed too."""
_MIN_SCORED: Final = 8
"""Prompt tokens with logits of a step beside decoding sequences, even if these then miss their
target time."""
_MAX_JOINED: Final = 64
"""A text of up to as many tokens is computed in one call with the picture or sound beside it, since
a call of its own would read all weights for it; beside decoding sequences only if the call has room
for vectors too."""
_MAX_TAIL: Final = 16
"""Tokens after a picture or sound, such as a question and the end of the turn, that are cut like
its vectors if they are computed alone; a longer text is computed like other prompts. Beside
decoding sequences the last of them is computed in their call, since one of its own would read all
weights for it."""


Spans = tuple[MediaSpan, ...]


def plan_decode(
    sequences: SequenceOf[Sequence],
    slots: SequenceOf[Slot],
    limits: NativeLimits,
    layout: BatchLayout,
) -> Plan:
    """Plan the call of decoding sequences: at least one, each with a slot."""
    max_row_tokens = max(limits.batch_tokens // len(sequences), 1)
    work = _in_slot_order(Work(sequence, _row(sequence, max_row_tokens)) for sequence in sequences)
    rows = [item.row for item in work]
    forced = sum(len(row.tokens) for row in rows) - len(rows)
    fillers = _fillers(work, slots, limits, layout)
    if fillers:
        # With logits, since the output layer also computes rows in blocks.
        rows += [Row(slot.index, len(slot.tokens), (0,), output=True) for slot in fillers]
        rows.sort(key=lambda row: row.slot)
    return Plan(tuple(rows), work, fillers, len(work), forced)


def plan_prefill(
    sequences: SequenceOf[Sequence], num_decoding: int, state: EngineParts
) -> tuple[Plan, ...]:
    """Plan a call for the prompts that this step completes, one for all others, one for those that
    need all logits, one for vectors, and one for each non-causal chunk.

    Prompts without a chunk are left out. The rows of the second call have equal lengths, so they
    divide a micro-batch evenly. All sequences have a slot. `num_decoding` sequences wait until the
    prefill is done.
    """
    now = state.clock()
    max_text = _joined_within(state, num_decoding)
    parts = [sequence.next_row(max_text) for sequence in sequences]
    spans = [part for part, _ in parts]
    scored = _scored_within(state, num_decoding)
    prompts = [
        _pending_prompt(
            sequence, min(count, scored) if _needs_logits(sequence, part) else count, now
        )
        for sequence, (part, count) in zip(sequences, parts, strict=True)
    ]
    cuttable = [i for i, sequence in enumerate(sequences) if _is_cut_finely(sequence, *parts[i])]
    chunks = _chunks(prompts, cuttable, num_decoding, state)
    logits = [i for i, sequence in enumerate(sequences) if _needs_logits(sequence, spans[i])]
    _shorten(logits, prompts, chunks, scored)
    _choose_whole(spans, chunks)
    for i in cuttable if num_decoding else ():
        if not spans[i] and chunks[i] == sequences[i].num_remaining > 1:
            chunks[i] -= 1  # the last token joins the next decode call
    work = _in_slot_order(
        Work(sequence, _row(sequence, chunk, part))
        for sequence, part, chunk in zip(sequences, spans, chunks, strict=True)
        if chunk
    )
    calls = groupby(sorted(work, key=_call_of), key=_call_of)
    return tuple(_prefill_plan(list(group)) for _, group in calls)


def _call_of(item: Work) -> tuple[bool, bool, bool, int]:
    """The call of a prompt's row, in the order of the calls."""
    row, is_alone = item.row, bool(item.row.spans) and not item.row.spans[0].is_causal
    completes = row.output and not row.scored
    return not completes, row.scored, bool(row.spans), row.slot if is_alone else -1


def _needs_logits(sequence: Sequence, spans: Spans) -> bool:
    return sequence.is_scoring and not spans


def _is_cut_finely(sequence: Sequence, spans: Spans, count: int) -> bool:
    """Whether the next row has causal chunks, or the few tokens after the last chunk."""
    if spans:
        return spans[0].is_causal
    return 0 < sequence.media_end <= sequence.num_computed and count <= _MAX_TAIL


def _scored_within(state: EngineParts, num_decoding: int) -> int:
    """The prompt tokens with logits of a step: at most the rows of logits of a decode call, and
    few enough that decoding sequences wait no longer than for the target time."""
    fitting, output_rows = None, state.backend.limits.output_rows
    if num_decoding and state.options.policy is not Policy.THROUGHPUT_FIRST:
        fitting = _fitting(state, num_decoding)
    if fitting is None:
        return output_rows
    return min(output_rows, max(fitting // _SCORED_COST, _MIN_SCORED))


def _fitting(state: EngineParts, num_decoding: int) -> int | None:
    """The prompt tokens with which a step takes the target time; None if nothing is measured."""
    target_s = state.options.token_target_s
    return state.step_time.prompt_tokens_within(target_s, num_decoding=num_decoding)


def _joined_within(state: EngineParts, num_decoding: int) -> int:
    """The most tokens of a text that is computed with the picture or sound beside it."""
    if not state.backend.limits.mixes_vectors:
        return 0
    vectors = _vectors_within(state, num_decoding)
    return _MAX_JOINED if vectors is None else min(_MAX_JOINED, vectors - BLOCK)


def _vectors_within(state: EngineParts, num_decoding: int) -> int | None:
    """The vectors of a step beside decoding sequences, which wait for them no longer than for the
    target time, also under `Policy.BALANCED`: a chunk has waited for its encoding, so a few more
    steps add little to that. None if no sequence waits, or nothing is measured."""
    if not num_decoding or state.options.policy is Policy.THROUGHPUT_FIRST:
        return None
    target_s = state.options.token_target_s
    return state.step_time.vectors_within(target_s, num_decoding=num_decoding)


def _choose_whole(parts: SequenceOf[Spans], chunks: list[int]) -> None:
    """Of the non-causal chunks that the budget cuts, compute one whole and none of the others."""
    cut = [
        (chunks[i], -i, spans[0].num_tokens)
        for i, spans in enumerate(parts)
        if spans and not spans[0].is_causal and 0 < chunks[i] < spans[0].num_tokens
    ]
    for _, i, _ in cut:
        chunks[-i] = 0
    if cut:
        _, i, whole = max(cut)
        chunks[-i] = whole


def without_ended(plan: Plan) -> Plan | None:
    """The prefill plan without sequences that have lost their slots; None if none remain."""
    remaining = [item for item in plan.work if item.sequence.slot is not None]
    return _prefill_plan(remaining) if remaining else None


def _prefill_plan(work: SequenceOf[Work]) -> Plan:
    tokens = sum(len(item.row.tokens) for item in work)
    return Plan(tuple(item.row for item in work), tuple(work), prompt_tokens=tokens)


def _in_slot_order(work: Iterable[Work]) -> tuple[Work, ...]:
    return tuple(sorted(work, key=lambda item: item.row.slot))


def _chunks(
    prompts: SequenceOf[PendingPrompt],
    cuttable: SequenceOf[int],
    num_decoding: int,
    state: EngineParts,
) -> list[int]:
    options, limits = state.options, state.backend.limits
    fitting, cap = None, min(options.chunk_cap, limits.pass_tokens)
    if num_decoding:
        fitting, cap = _fitting(state, num_decoding), options.chunk_cap
    budget = prefill_budget(
        options.policy,
        prompts,
        available=limits.batch_tokens,
        cap=cap,
        fitting=fitting,
        num_decoding=num_decoding,
    )
    steps = 1 if num_decoding else max(options.chunk_cap // max(budget, 1), 1)
    chunks = priority_chunks(prompts, budget, steps=steps)
    if (vectors := _vectors_within(state, num_decoding)) is not None:
        _shorten(cuttable, prompts, chunks, vectors)
    return chunks


def _shorten(
    chosen: Iterable[int],
    prompts: SequenceOf[PendingPrompt],
    chunks: list[int],
    available: int,
) -> None:
    """Limit the tokens of the chosen chunks together, highest priority first."""
    for i in sorted(chosen, key=lambda i: (-prompts[i].effective_priority, -prompts[i].ratio)):
        chunks[i] = min(chunks[i], available)
        available -= chunks[i]


def _pending_prompt(sequence: Sequence, count: int, now: float) -> PendingPrompt:
    ratio = max(sequence.response_ratio(now), sequence.inherited_ratio)
    return PendingPrompt(count, sequence.effective_priority, sequence.skipped_steps, ratio)


def _row(sequence: Sequence, count: int, spans: Spans = ()) -> Row:
    """The row of the next `count` tokens, or of all that are left."""
    start, slot = sequence.num_computed, sequence.slot
    if slot is None:
        raise ValueError(f"sequence {sequence.request.sequence_id} has no slot")
    tokens = sequence.tokens[start : start + count]
    end = start + len(tokens)
    if spans:
        spans = tuple(span for span in spans if span.start < end)
    scored = _needs_logits(sequence, spans)
    return Row(slot.index, start, tokens, end == len(sequence.tokens), 0, spans, scored)


def _fillers(
    work: SequenceOf[Work], slots: SequenceOf[Slot], limits: NativeLimits, layout: BatchLayout
) -> tuple[Slot, ...]:
    """The idle slots that get a filler row, as far as the batch has room for them."""
    if not layout.has_choice(len(work)):
        return ()
    used = tuple(item.row.slot for item in work)
    chosen = layout.repeated(used)
    if chosen is None or any(len(slots[index].tokens) >= limits.slot_tokens for index in chosen):
        busy = frozenset(used)
        fillable = [
            slot.index
            for slot in slots
            if slot.index not in busy and len(slot.tokens) < limits.slot_tokens
        ]
        chosen = layout.fillers(used, fillable)
    if not chosen:
        return ()
    available = limits.batch_tokens - sum(len(item.row.tokens) for item in work)
    return tuple(slots[index] for index in chosen[: max(available, 0)])
