"""Times sequences on an engine in this process. The cost of a grammar is too small to be measured
through a server."""

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
from inference_svc.engine.engine_parts import EngineOptions
from inference_svc.engine.events import Delta, Failed
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.structured_output.spec import OutputFormat, OutputSpec
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings

PROMPT = "Write down what you know."


class RunResult(NamedTuple):
    """Wall time and CPU time of all threads from the first token on, the texts, and the number of
    tokens."""

    wall_s: float
    cpu_s: float
    texts: list[str]
    tokens: int


class UnforcedGuide:
    """A guide without forced tokens: its masks allow only one token instead."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide

    def wait(self, timeout_s: float) -> bool:
        """Delegate to the guide."""
        return self._guide.wait(timeout_s)

    @property
    def is_finished(self) -> bool:
        """Delegate to the guide."""
        return self._guide.is_finished

    def prepare(self) -> None:
        """Delegate to the guide."""
        self._guide.prepare()

    def mask(self) -> TokenMask:
        """Delegate to the guide."""
        return self._guide.mask()

    def accept(self, tokens: Sequence[int]) -> None:
        """Delegate to the guide."""
        self._guide.accept(tokens)

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """Return no tokens."""
        return ()

    def close(self) -> None:
        """Delegate to the guide."""
        self._guide.close()


class SwitchableBackend(LlamaBackend):
    """A backend that can turn forced tokens off."""

    force_tokens = True

    def new_guide(self, constraint: Constraint) -> Guide:
        """Return the guide, wrapped in `UnforcedGuide` if forced tokens are off."""
        guide = super().new_guide(constraint)
        return guide if self.force_tokens else UnforcedGuide(guide)


class EngineRuns:
    """Runs sequences to completion and measures the time."""

    def __init__(self, backend: SwitchableBackend, slots: int) -> None:
        self._backend = backend
        self._slots = slots
        self._prompt = backend.vocabulary.tokenize(PROMPT, add_special=True, parse_special=True)
        vocabulary = backend.vocabulary
        self._vocabulary = GrammarVocabulary(
            vocabulary.size, vocabulary.control_tokens, tuple(sorted(vocabulary.end_tokens))
        )

    def constraint(self, form: OutputFormat) -> Constraint:
        """Compile an output format."""

        async def compile_grammar() -> str:
            async with SandboxPool(SandboxSettings(min_children=0, max_children=1)) as pool:
                spec = OutputSpec(form, None, None)
                return (await GrammarCompiler(pool).compile(spec, self._vocabulary)).text

        return Constraint(asyncio.run(compile_grammar()), form.field)

    def run(
        self,
        constraint: Constraint | None,
        *,
        count: int,
        tokens: int,
        seed: int,
        force_tokens: bool,
    ) -> RunResult:
        """Run `count` sequences of at most `tokens` each to completion."""
        self._backend.force_tokens = force_tokens
        engine = Engine(
            "bench",
            self._backend,
            EngineOptions(chunk_cap=512),
            layout=BatchLayout({}, self._slots),
            clock=time.monotonic,
        )
        for i in range(count):
            engine.submit(self._request(i, constraint, tokens, seed))
        texts, num_tokens = [""] * count, 0
        wall = cpu = 0.0
        while engine.has_work:
            if not num_tokens:  # exclude the time of building the grammar
                wall, cpu = time.perf_counter(), time.process_time()
            for event in engine.step():
                if isinstance(event, Failed):
                    raise RuntimeError(str(event.error))
                if isinstance(event, Delta):
                    texts[event.sequence_id] += event.text
                    num_tokens += len(event.tokens)
        return RunResult(time.perf_counter() - wall, time.process_time() - cpu, texts, num_tokens)

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
    """Load a model for runs of at most `slots` concurrent sequences."""
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
