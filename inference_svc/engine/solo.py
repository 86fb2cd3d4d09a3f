"""Deterministic sequences: computed by themselves, so that nothing else moves their logits.

The rounding of a logit depends on the shape of the decode call. So whoever asks for determinism
gets decode calls of its own: its prompt from the first token in chunks of one size, then one row a
call. The other sequences wait for that call as for any other part of the step; that is its price.
"""

from collections.abc import Sequence as SequenceOf

from inference_svc.engine.sequence import Sequence


def apart(active: SequenceOf[Sequence]) -> list[list[Sequence]]:
    """The decode calls of a step: everybody who shares one, then each deterministic sequence alone.

    Of deterministic prompts only the most urgent one computes a chunk, to bound the step.
    """
    shared = [sequence for sequence in active if not sequence.request.deterministic]
    alone = [sequence for sequence in active if sequence.request.deterministic]
    prompts = [sequence for sequence in alone if not sequence.is_decoding]
    prompts.sort(key=_order)
    solos = [sequence for sequence in alone if sequence.is_decoding] + prompts[:1]
    return ([shared] if shared else []) + [[sequence] for sequence in solos]


def _order(sequence: Sequence) -> tuple[int, float, float]:
    deadline = sequence.request.deadline
    return -sequence.urgency, float("inf") if deadline is None else deadline, sequence.arrived_at
