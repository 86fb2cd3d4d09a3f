"""Log probabilities of the model itself, before any bias or filter."""

import math
from collections.abc import Callable

import numpy as np

from inference_svc.engine.events import ChosenLogprob, Logprob
from inference_svc.llama.sampling.candidate_selection import largest
from inference_svc.llama.sampling.candidates import Logits


def token_logprobs(
    row: Logits, token: int, num_top: int, piece: Callable[[int], bytes], buffer: Logits
) -> ChosenLogprob:
    """The log probability of `token`, and of the `num_top` best tokens, best first. `buffer` is as
    long as the row, and overwritten."""
    best = row.max()
    weights = np.exp(np.subtract(row, best, out=buffer), out=buffer)
    log_total = float(best) + math.log(float(weights.sum()))

    def logprob(token: int) -> Logprob:
        return Logprob(token, piece(token), float(row[token]) - log_total)

    return ChosenLogprob(logprob(token), tuple(logprob(int(top)) for top in largest(row, num_top)))
