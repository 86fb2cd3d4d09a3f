"""Random numbers derived from seed, choice and output position.

llama.cpp's random state is not used: it can be neither read nor set, so a sampler could not be
restored.
"""

import hashlib

import llama_cpp
import numpy as np

from inference_svc.llama.sampling.candidates import Candidates, Logits

_RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED: llama.cpp chooses a random seed
_BLOCK = 512


class SamplingRng:
    """The seeds of one choice of a request."""

    def __init__(self, seed: int, choice: int) -> None:
        self._base = f"{seed}|{choice}|".encode()

    def seed(self, draw: int, purpose: bytes) -> int:
        """A 32-bit seed for one purpose at an output position."""
        digest = hashlib.blake2b(self._base + b"%d|%s" % (draw, purpose), digest_size=4)
        seed = int.from_bytes(digest.digest(), "little")
        return seed if seed != _RANDOM_SEED else 0


def sample_candidate(scratch: Candidates, seed: int) -> int:
    """Sample a token from the remaining candidates by their logits."""
    sampler = llama_cpp.llama_sampler_init_dist(seed)
    llama_cpp.llama_sampler_apply(sampler, scratch.reference)
    llama_cpp.llama_sampler_free(sampler)
    return scratch.selected()


def sample_from_all(logits: Logits, temperature: float, seed: int, buffer: Logits) -> int:
    """Sample a token from the whole vocabulary by inverting the cumulative distribution.

    Searches sums of blocks, then inside one block: a cumulative sum over all tokens takes 4x
    longer. Blocks are summed in 32 bits, as exact as their logits, and by `einsum`, which takes a
    fifth of the time of `sum`. Overwrites `buffer`, which is as long as `logits`.
    """
    best = logits.max()
    if best == -np.inf:
        return 0  # the request forbids every token
    weights = np.subtract(logits, best, out=buffer)
    if temperature != 1:
        np.divide(weights, np.float32(temperature), out=weights)
    np.exp(weights, out=weights)
    num_blocks = len(weights) // _BLOCK
    sums = np.empty(num_blocks + 1)
    whole = num_blocks * _BLOCK
    sums[:-1] = np.einsum("ij->i", weights[:whole].reshape(-1, _BLOCK))
    sums[-1] = weights[whole:].sum()
    sums.cumsum(out=sums)
    target = seed / 2**32 * sums[-1]
    block = int(sums.searchsorted(target, side="right"))
    start = block * _BLOCK
    members = weights[start : start + _BLOCK]
    rest = target - (sums[block - 1] if block else 0.0)
    index = int(members.cumsum(dtype=np.float64).searchsorted(rest, side="right"))
    # Rounding may place the target behind the last token with a nonzero weight.
    return start + (index if index < len(members) else int(np.flatnonzero(members)[-1]))
