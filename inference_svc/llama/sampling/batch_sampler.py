"""Samples all rows of a step; slow rows are distributed over threads."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from inference_svc.engine.backend import SampledToken, SampleFailure, SampleTask
from inference_svc.llama.sampling.candidates import Candidates, Logits
from inference_svc.llama.sampling.chain import SamplerChain

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
            return SampledToken(token, chain.logprobs(row, token, scratch))
        except Exception as error:  # the settings of one request must not fail the others
            log.exception("sampling failed")
            return SampleFailure(repr(error))
        finally:
            self._scratch.put(scratch)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()


def _chain(task: SampleTask) -> SamplerChain:
    if not isinstance(task.sampler, SamplerChain):
        raise TypeError(f"not a sampler of this backend: {task.sampler!r}")
    return task.sampler
