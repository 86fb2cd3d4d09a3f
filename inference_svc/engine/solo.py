"""Deterministic sequences: computed by themselves, so that nothing else moves their logits.

The rounding of a logit depends on the shape of the decode call. So whoever asks for determinism
gets decode calls of its own: its prompt from the first token in chunks of one size, then one row a
call. The other sequences wait for that call as for any other part of the step; that is its price.
"""

from collections.abc import Sequence as SequenceOf

from inference_svc.engine.admission import aged_class
from inference_svc.engine.sequence import Sequence


def apart(active: SequenceOf[Sequence], now: float) -> list[list[Sequence]]:
    """The decode calls of a step: everybody who shares one, then each deterministic sequence alone.

    Of deterministic prompts only one computes a chunk, to bound the step: of the most urgent class,
    which rises with waiting here as well, the one that has waited longest for its length.
    """
    shared = [sequence for sequence in active if not sequence.request.deterministic]
    alone = [sequence for sequence in active if sequence.request.deterministic]
    prompts = [sequence for sequence in alone if not sequence.is_decoding]
    prompts.sort(key=lambda one: _order(one, now), reverse=True)
    solos = [sequence for sequence in alone if sequence.is_decoding] + prompts[:1]
    return ([shared] if shared else []) + [[sequence] for sequence in solos]


def _order(sequence: Sequence, now: float) -> tuple[int, float]:
    return max(sequence.urgency, aged_class(sequence, now)), sequence.response_ratio(now)
