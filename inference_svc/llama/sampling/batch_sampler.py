"""Samples and scores all rows of a step; slow rows are distributed over threads."""

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np

from inference_svc.engine.backend import SampledToken, SampleFailure, SampleTask, ScoreTask
from inference_svc.engine.events import ChosenLogprob
from inference_svc.llama.sampling.candidates import Candidates, Logits
from inference_svc.llama.sampling.chain import SamplerChain, token_logprobs

log = logging.getLogger(__name__)


class RowSampler:
    """Samples rows on a thread pool and on the calling thread, which must always be the same."""

    def __init__(self, vocabulary_size: int, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "sampling")
        self._scratch: SimpleQueue[Candidates] = SimpleQueue()
        for _ in range(threads + 1):
            self._scratch.put(Candidates(vocabulary_size))

    def sample(
        self, tasks: Sequence[SampleTask], rows: Sequence[Logits]
    ) -> list[SampledToken | SampleFailure]:
        """Sample a token for each task from its row. Rows are modified and restored."""
        slow = [i for i, task in enumerate(tasks) if _chain(task).is_slow]
        # The calling thread would only wait: it samples one of the slow rows itself.
        futures = {i: self._pool.submit(self._sample, tasks[i], rows[i]) for i in slow[1:]}
        results = {
            i: self._sample(tasks[i], rows[i]) for i in range(len(tasks)) if i not in futures
        }
        return [results[i] if i in results else futures[i].result() for i in range(len(tasks))]

    def _sample(self, task: SampleTask, row: Logits) -> SampledToken | SampleFailure:
        scratch = self._scratch.get()
        try:
            chain = _chain(task)
            token = chain.sample(row, task.draw, scratch, task.mask)
            if not math.isfinite(row[token]):
                log.error("the model computed a logit that is not finite")
                return SampleFailure("the logits are not finite")
            return SampledToken(token, chain.logprobs(row, token, scratch))
        except Exception as error:  # the settings of one request must not fail the others
            log.exception("sampling failed")
            return SampleFailure(repr(error))
        finally:
            self._scratch.put(scratch)

    def score(
        self, tasks: Sequence[ScoreTask], rows: Sequence[Logits], piece: Callable[[int], bytes]
    ) -> list[ChosenLogprob]:
        """Compute the log probabilities of each task from its row, on all threads."""
        count = self._scratch.qsize()
        parts = [list(zip(tasks, rows, strict=True))[i::count] for i in range(count)]
        others = [self._pool.submit(self._score, part, piece) for part in parts[1:]]
        results = [self._score(parts[0], piece), *(future.result() for future in others)]
        return [results[i % count][i // count] for i in range(len(tasks))]

    def _score(
        self, part: Sequence[tuple[ScoreTask, Logits]], piece: Callable[[int], bytes]
    ) -> list[ChosenLogprob]:
        scratch = self._scratch.get()
        try:
            return [
                token_logprobs(row, task.token, task.num_top, piece, scratch.weights)._replace(
                    rank=1 + int(np.count_nonzero(row > row[task.token]))
                )
                for task, row in part
            ]
        finally:
            self._scratch.put(scratch)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()


def _chain(task: SampleTask) -> SamplerChain:
    if not isinstance(task.sampler, SamplerChain):
        raise TypeError(f"not a sampler of this backend: {task.sampler!r}")
    return task.sampler
