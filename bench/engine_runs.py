"""Runs sequences on the engine itself, in this process, and takes the time: what a grammar costs is
too little to be seen through a server."""

import asyncio
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.workload import SAMPLINGS
from inference_svc.engine.constraint import Constraint, Guide, TokenMask
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Delta, Failed
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.structured_output.spec import OutputFormat, OutputSpec
from svc_kit.sandbox.frames import InlineJobs

PROMPT = "Write down what you know."


class Ran(NamedTuple):
    """One run from its first decode on: seconds by the clock and of all threads' processors, the
    texts, and how many tokens they have."""

    wall_s: float
    cpu_s: float
    texts: list[str]
    tokens: int


class OneByOne:
    """A guide that leaves it to the masks to force anything."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide

    def wait(self, timeout_s: float) -> bool:
        """As the guide."""
        return self._guide.wait(timeout_s)

    @property
    def is_finished(self) -> bool:
        """As the guide."""
        return self._guide.is_finished

    def prepare(self) -> None:
        """As the guide."""
        self._guide.prepare()

    def mask(self) -> TokenMask:
        """As the guide."""
        return self._guide.mask()

    def accept(self, tokens: Sequence[int]) -> None:
        """As the guide."""
        self._guide.accept(tokens)

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """Nothing."""
        return ()

    def close(self) -> None:
        """As the guide."""
        self._guide.close()


class SwitchableBackend(LlamaBackend):
    """The backend, with forced tokens or without."""

    forces = True

    def new_guide(self, constraint: Constraint) -> Guide:
        """The guide, or one that forces nothing."""
        guide = super().new_guide(constraint)
        return guide if self.forces else OneByOne(guide)


class EngineRuns:
    """Runs sequences to their end and takes the time."""

    def __init__(self, backend: SwitchableBackend, slots: int) -> None:
        self._backend = backend
        self._slots = slots
        self._prompt = backend.vocabulary.tokenize(PROMPT, add_special=True, parse_special=True)
        vocabulary = backend.vocabulary
        self._known = GrammarVocabulary(
            vocabulary.size, vocabulary.control_tokens, tuple(sorted(vocabulary.end_tokens))
        )
        self._compiler = GrammarCompiler(InlineJobs())

    def constraint(self, form: OutputFormat) -> Constraint:
        """A form's grammar."""
        grammar = asyncio.run(self._compiler.compile(OutputSpec(form, None, None), self._known))
        return Constraint(grammar, form.field)

    def run(
        self, constraint: Constraint | None, *, count: int, tokens: int, seed: int, forces: bool
    ) -> Ran:
        """Run `count` sequences of at most `tokens` each to their end."""
        self._backend.forces = forces
        engine = Engine(
            "bench",
            self._backend,
            layout=BatchLayout({}, self._slots),
            chunk_cap=512,
            clock=time.monotonic,
        )
        for i in range(count):
            engine.submit(self._request(i, constraint, tokens, seed))
        texts, num_tokens = [""] * count, 0
        wall = cpu = 0.0
        while engine.has_work:
            if not num_tokens:  # grammars in the making are not what is measured
                wall, cpu = time.perf_counter(), time.process_time()
            for event in engine.step():
                if isinstance(event, Failed):
                    raise RuntimeError(str(event.error))
                if isinstance(event, Delta):
                    texts[event.sequence_id] += event.text
                    num_tokens += len(event.tokens)
        return Ran(time.perf_counter() - wall, time.process_time() - cpu, texts, num_tokens)

    def _request(
        self, i: int, constraint: Constraint | None, tokens: int, seed: int
    ) -> SequenceRequest:
        sampled = SAMPLINGS["sampled"]
        return SequenceRequest(
            sequence_id=i,
            model="bench",
            prompt=array("i", self._prompt),
            sampling=Sampling(
                temperature=sampled.temperature,
                top_k=sampled.top_k,
                top_p=sampled.top_p,
                min_p=sampled.min_p,
            ),
            seed=seed,
            choice=i,
            max_tokens=tokens,
            cache_key=b"",
            resumed=array("i"),
            ignore_eos=True,
            constraint=constraint,
            reuse=False,
        )


@contextmanager
def engine_runs(
    model: Path, *, slots: int, context_tokens: int, threads: int
) -> Iterator[EngineRuns]:
    """Load a model for runs of at most so many sequences at once."""
    library.start()
    backend = SwitchableBackend(
        BackendSettings(
            model,
            slots=slots,
            context_tokens=context_tokens,
            batch_tokens=512,
            ubatch_tokens=256,
            threads=threads,
            sampling_threads=threads,
        )
    )
    try:
        yield EngineRuns(backend, slots)
    finally:
        backend.close()
