"""What constrained output costs and saves, on the engine itself, in one process.

    python -m bench.constrained [--model FILE.gguf] [--rounds 5]

Cost: time a step of sequences under a grammar that never forces anything, beside free ones of the
same length, in turns. Saving: the time until a whole answer after each of the schemas in
`schemas/`, with forced tokens computed together and one by one, for the same seeds. Each by the
clock and by the processor time of all threads; where other programs run, trust the second.
"""

import argparse
import asyncio
import json
import statistics
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.paths import BUNDLED_MODEL, REPOSITORY
from bench.workload import SAMPLINGS
from inference_svc.constraints.asked import Asked, Form, FormKind
from inference_svc.constraints.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Delta, Failed
from inference_svc.engine.guide import Constraint, Guide, TokenMask
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling import Sampling
from inference_svc.engine.shape import StepShape
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.sandbox.inline import InlineJobs

SCHEMAS = REPOSITORY / "bench/schemas"
PROMPT = "Write down what you know."
COST_FORMS = {
    "any text": Form(FormKind.REGEX, "(?s:.*)", "regex"),
    "a long array": Form(
        FormKind.JSON_SCHEMA,
        json.dumps({"type": "array", "minItems": 999, "items": {"type": ["string", "integer"]}}),
        "schema",
    ),
}


class Ran(NamedTuple):
    """One run from its first decode on: seconds by the clock and of processors, the texts, and how
    many tokens they have."""

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
    def is_over(self) -> bool:
        """As the guide."""
        return self._guide.is_over

    def prepare(self) -> None:
        """As the guide."""
        self._guide.prepare()

    def mask(self) -> TokenMask:
        """As the guide."""
        return self._guide.mask()

    def take(self, tokens: Sequence[int]) -> None:
        """As the guide."""
        self._guide.take(tokens)

    def forced(self, limit: int) -> Sequence[int]:
        """Nothing."""
        return ()

    def close(self) -> None:
        """As the guide."""
        self._guide.close()


class BenchBackend(LlamaBackend):
    """The backend, with forced tokens or without."""

    forces = True

    def new_guide(self, constraint: Constraint) -> Guide:
        """The guide, or one that forces nothing."""
        guide = super().new_guide(constraint)
        return guide if self.forces else OneByOne(guide)


class Bench:
    """Runs sequences to their end and takes the time."""

    def __init__(self, backend: BenchBackend, slots: int) -> None:
        self.backend = backend
        self._slots = slots
        self._prompt = backend.vocabulary.tokenize(PROMPT, add_special=True, parse_special=True)
        vocabulary = backend.vocabulary
        self._known = GrammarVocabulary(
            vocabulary.size, vocabulary.control_tokens, tuple(sorted(vocabulary.end_tokens))
        )
        self._compiler = GrammarCompiler(InlineJobs())

    def constraint(self, form: Form) -> Constraint:
        """A form's grammar."""
        grammar = asyncio.run(self._compiler.compile(Asked(form, None, None), self._known))
        return Constraint(grammar, form.field)

    def run(
        self, constraint: Constraint | None, *, count: int, tokens: int, seed: int, forces: bool
    ) -> Ran:
        """Run `count` sequences of at most `tokens` each to their end."""
        self.backend.forces = forces
        engine = Engine(
            "bench",
            self.backend,
            shape=StepShape({}, self._slots),
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


def costs(bench: Bench, rounds: int, counts: Sequence[int], tokens: int) -> Iterator[str]:
    """Time a token under each form beside free text, round by round."""
    for name, form in COST_FORMS.items():
        constraint = bench.constraint(form)
        for count in counts:
            bench.run(constraint, count=count, tokens=8, seed=99, forces=False)
            free: list[Ran] = []
            bound: list[Ran] = []
            for number in range(rounds):
                for one in (None, constraint) if number % 2 else (constraint, None):
                    ran = bench.run(one, count=count, tokens=tokens, seed=number, forces=False)
                    (free if one is None else bound).append(ran)
            steps = 1e3 * count / free[0].tokens
            yield (
                f"{name:14} x{count:<3} free step {steps * _middle(free):7.2f} ms, cost: "
                + _compared(bound, free)
            )


def savings(bench: Bench, rounds: int, tokens: int) -> Iterator[str]:
    """Time until a whole answer after each schema, forced tokens together and one by one."""
    for path in sorted(SCHEMAS.glob("*.json")):
        constraint = bench.constraint(Form(FormKind.JSON_SCHEMA, path.read_text(), "schema"))
        bench.run(constraint, count=1, tokens=tokens, seed=99, forces=True)
        together: list[Ran] = []
        single: list[Ran] = []
        for seed in range(rounds):
            for forces in (True, False) if seed % 2 else (False, True):
                ran = bench.run(constraint, count=1, tokens=tokens, seed=seed, forces=forces)
                (together if forces else single).append(ran)
        valid = [sum(_is_json(ran.texts[0]) for ran in runs) for runs in (together, single)]
        yield (
            f"{path.stem:14} saved: {_compared(single, together)}; "
            f"valid {valid[0]} and {valid[1]} of {rounds}"
        )


def _compared(slower: Sequence[Ran], faster: Sequence[Ran]) -> str:
    pairs = list(zip(slower, faster, strict=True))
    by_clock = _ratios([one.wall_s / other.wall_s for one, other in pairs])
    by_processors = _ratios([one.cpu_s / other.cpu_s for one, other in pairs])
    return f"by the clock {by_clock}, by processors {by_processors}"


def _middle(runs: Sequence[Ran]) -> float:
    return statistics.median(ran.wall_s for ran in runs)


def _ratios(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of a sequence, for the cost")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--counts", default="1,8", help="sequences at once, for the cost")
    options = parser.parse_args()
    counts = [int(count) for count in options.counts.split(",")]
    library.start()
    slots = max(counts)
    backend = BenchBackend(
        BackendSettings(
            options.model,
            slots=slots,
            context_tokens=512,
            batch_tokens=512,
            ubatch_tokens=512,
            threads=options.threads,
            sampling_threads=options.threads,
        )
    )
    bench = Bench(backend, slots)
    for line in costs(bench, options.rounds, counts, options.tokens):
        print(line, flush=True)
    for line in savings(bench, options.rounds, 480):
        print(line, flush=True)
    backend.close()


if __name__ == "__main__":
    main()
