"""Deterministic sequences: computed by themselves, so that nothing else moves their logits.

The rounding of a logit depends on the shape of the decode call. So whoever asks for determinism
gets decode calls of its own: its prompt from the first token in chunks of one size, then one row a
call. The other sequences wait for that call as for any other part of the step; that is its price.
"""

from collections.abc import Sequence as SequenceOf

from inference_svc.engine.admission import aged_class
from inference_svc.engine.sequence import Sequence


def solos(sequences: SequenceOf[Sequence], now: float) -> list[Sequence]:
    """Those of the deterministic sequences that have a call in this step.

    Of their prompts only one computes a chunk, to bound the step: of the most urgent class, which
    rises with waiting here as well, the one that has waited longest for its length.
    """
    texts = [sequence for sequence in sequences if sequence.is_decoding]
    prompts = [sequence for sequence in sequences if not sequence.is_decoding]
    return texts + sorted(prompts, key=lambda one: _order(one, now), reverse=True)[:1]


def _order(sequence: Sequence, now: float) -> tuple[int, float]:
    return max(sequence.urgency, aged_class(sequence, now)), sequence.response_ratio(now)
