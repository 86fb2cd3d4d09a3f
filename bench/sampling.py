"""Measures the cost of sampling a token: CPU time for one row of logits, by settings.

CPU time of one thread depends little on other load. The logits are random, and so flatter than
those of a trained model, which is the worst case for every filter.

    python -m bench.sampling [--vocabulary 151936] [--rounds 20]
"""

import argparse
import time
from array import array
from dataclasses import replace
from statistics import median

import numpy as np

from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling
from inference_svc.llama.sampling.candidates import Candidates, Logits
from inference_svc.llama.sampling.chain import SamplerChain
from inference_svc.llama.sampling.native_filters import ModelSizes

ALL = Sampling(top_k=0, top_p=1.0, min_p=0.0)
CASES: dict[str, tuple[Sampling, int | None]] = {
    "temperature 0": (Sampling(temperature=0.0), None),
    "top_k 40, top_p 0.95, min_p 0.05": (Sampling(), None),
    "temperature 1 alone": (replace(ALL, temperature=1.0), None),
    "min_p 0.05 alone": (Sampling(top_k=0, top_p=1.0), None),
    "top_p 0.9 alone": (Sampling(top_k=0, top_p=0.9, min_p=0.0), None),
    "repetition penalty": (Sampling(repetition_penalty=1.1), None),
    "DRY": (Sampling(dry=Dry(multiplier=0.8, sequence_breakers=())), None),
    "XTC": (Sampling(xtc_probability=0.5), None),
    "top_n_sigma": (replace(ALL, top_n_sigma=1.0), None),
    "typical_p alone": (replace(ALL, typical_p=0.9), None),
    "mirostat 2": (Sampling(mirostat=Mirostat(2)), None),
    "adaptive-p": (Sampling(adaptive=Adaptive(0.5)), None),
    "with 5 log probabilities": (Sampling(), 5),
}
PROMPT_TOKENS = 800


def row_seconds(
    sampling: Sampling, top_logprobs: int | None, rows: list[Logits], rounds: int
) -> float:
    """Return the median CPU time of one row."""
    size = len(rows[0])
    request = SequenceRequest(
        sequence_id=0,
        model="",
        prompt=array("i", np.random.default_rng(1).integers(0, size, PROMPT_TOKENS).tolist()),
        sampling=sampling,
        seed=1,
        choice=0,
        max_tokens=rounds * len(rows),
        cache_key=b"",
        resumed=array("i"),
        top_logprobs=top_logprobs,
    )
    ends = np.empty(0, np.int32)
    chain = SamplerChain(request, ModelSizes(None, size, 4096), ends, lambda _: b"")
    scratch, seconds = Candidates(size), []
    for draw in range(rounds):
        started = time.thread_time()
        for row in rows:
            token = chain.sample(row, draw, scratch)
            chain.logprobs(row, token, scratch)
            chain.accept(token)
        seconds.append((time.thread_time() - started) / len(rows))
    chain.close()
    return median(seconds)


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = [rng.normal(0, 3, arguments.vocabulary).astype(np.float32) for _ in range(8)]
    for name, (sampling, top_logprobs) in CASES.items():
        seconds = row_seconds(sampling, top_logprobs, rows, arguments.rounds)
        print(f"{name:34} {seconds * 1e6:8.0f} us per row")


if __name__ == "__main__":
    main()
