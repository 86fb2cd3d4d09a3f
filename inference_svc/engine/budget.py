"""How many prompt tokens a step computes, and whose.

Every running sequence decodes in every step. Prompts share what is left, in equal chunks, so that
sequences that prefill together also share compute batches. While somebody decodes, the prompt
tokens of a step are capped: the cap bounds the time between two tokens and the time until a cancel
is noticed.
"""

from collections.abc import Sequence


def prefill_budget(*, batch_tokens: int, num_decoding: int, chunk_cap: int) -> int:
    """The prompt tokens that one step may compute beside `num_decoding` decode rows."""
    left = batch_tokens - num_decoding
    return min(left, chunk_cap) if num_decoding else left


def fair_chunks(remaining: Sequence[int], budget: int) -> list[int]:
    """Share `budget` tokens among prompts with `remaining` tokens each: equally, what one leaves
    going to the others.

    A budget smaller than the number of prompts serves the first ones with one token each.
    """
    chunks = [0] * len(remaining)
    open_ = [i for i, tokens in enumerate(remaining) if tokens > 0]
    while open_ and budget > 0:
        share = max(budget // len(open_), 1)
        for i in open_:
            take = min(share, remaining[i] - chunks[i], budget)
            chunks[i] += take
            budget -= take
        open_ = [i for i in open_ if chunks[i] < remaining[i]]
    return chunks
