"""Random numbers keyed by seed, choice and draw count.

llama.cpp's random state is not used: it can be neither read nor set, so a sampler could not be
rebuilt.
"""

import hashlib

import llama_cpp
import numpy as np

from inference_svc.llama.sampling.candidates import Candidates, Logits

_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp reads it as "make one up"
_BLOCK = 512


class SamplingRng:
    """The seeds of one choice of a request."""

    def __init__(self, seed: int, choice: int) -> None:
        self._base = f"{seed}|{choice}|".encode()

    def seed(self, draw: int, purpose: bytes) -> int:
        """32 bits for one use in the draw of the token with this index."""
        digest = hashlib.blake2b(self._base + b"%d|%s" % (draw, purpose), digest_size=4)
        seed = int.from_bytes(digest.digest(), "little")
        return seed if seed != _RANDOM_SEED else 0


def sample_candidate(scratch: Candidates, seed: int) -> int:
    """A token drawn from the candidates that are left, by their logits."""
    sampler = llama_cpp.llama_sampler_init_dist(seed)
    llama_cpp.llama_sampler_apply(sampler, scratch.reference)
    llama_cpp.llama_sampler_free(sampler)
    return scratch.selected()


def sample_from_all(logits: Logits, temperature: float, seed: int, buffer: Logits) -> int:
    """A token drawn from the whole vocabulary: the place of a random number in the running sum.

    Sums of blocks first, then inside one block: a running sum over everything takes 4x longer. In
    32 bits a block is as exact as its logits, and all blocks take half as long.
    `buffer` is as long as `logits`, and overwritten.
    """
    best = logits.max()
    if np.isneginf(best):
        return 0  # the request forbids every token
    weights = np.subtract(logits, best, out=buffer)
    if temperature != 1:
        np.divide(weights, np.float32(temperature), out=weights)
    np.exp(weights, out=weights)
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
    sums = np.cumsum(np.append(blocks, weights[whole:].sum()), dtype=np.float64)
    mark = seed / 2**32 * sums[-1]
    block = int(np.searchsorted(sums, mark, side="right"))
    start = block * _BLOCK
    inside = np.cumsum(weights[start : start + _BLOCK], dtype=np.float64)
    rest = mark - (sums[block - 1] if block else 0.0)
    place = int(np.searchsorted(inside, rest, side="right"))
    # Rounding may leave the mark behind the last token that has any weight.
    return start + min(place, int(np.flatnonzero(weights[start : start + _BLOCK])[-1]))
