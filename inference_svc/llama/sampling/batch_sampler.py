"""Samples all rows of a step, on several threads where that pays."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from inference_svc.engine.backend import SampledToken, SampleFailure, SampleTask
from inference_svc.llama.sampling.candidates import Candidates, Logits
from inference_svc.llama.sampling.chain import SamplerChain

log = logging.getLogger(__name__)


class RowSampler:
    """Samples rows; used by one thread, which takes part in the work."""

    def __init__(self, vocabulary_size: int, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "sampling")
        self._scratch: SimpleQueue[Candidates] = SimpleQueue()
        for _ in range(threads + 1):
            self._scratch.put(Candidates(vocabulary_size))

    def sample(
        self, tasks: Sequence[SampleTask], rows: Sequence[Logits]
    ) -> list[SampledToken | SampleFailure]:
        """A token for each task from its own row, in order. The rows are changed meanwhile, each by
        one thread, and as they were afterwards."""
        slow = [i for i, task in enumerate(tasks) if _chain(task).is_slow]
        # The step thread would only wait: it takes one of them itself.
        handed_on = {i: self._pool.submit(self._choose, tasks[i], rows[i]) for i in slow[1:]}
        chosen = {
            i: self._choose(tasks[i], rows[i]) for i in range(len(tasks)) if i not in handed_on
        }
        return [chosen[i] if i in chosen else handed_on[i].result() for i in range(len(tasks))]

    def _choose(self, task: SampleTask, row: Logits) -> SampledToken | SampleFailure:
        scratch = self._scratch.get()
        try:
            chain = _chain(task)
            token = chain.choose(row, task.draw, scratch, task.mask)
            return SampledToken(token, chain.logprobs(row, token, scratch))
        except Exception as error:  # one request's settings must not end the process of all
            log.exception("sampling failed")
            return SampleFailure(repr(error))
        finally:
            self._scratch.put(scratch)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _chain(task: SampleTask) -> SamplerChain:
    if not isinstance(task.sampler, SamplerChain):
        raise TypeError("a sampler of another backend")
    return task.sampler
