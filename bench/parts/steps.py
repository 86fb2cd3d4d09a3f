"""What Python does for a step of the engine and for each of its rows, around a model that costs
nothing."""

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from random import Random
from threading import Thread
from typing import Any, NamedTuple, cast

from bench.measurement import CORRAL, Measurement, Result, median, values_by_round
from bench.stage import Part, Stage
from inference_svc.engine.backend import Backend, SampledToken, SampleTask
from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.engine_parts import EngineOptions
from inference_svc.engine.request import AdapterStack, SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.messages import DeviceMemoryReport
from inference_svc.engine_process.output_batcher import OutputBatcher
from inference_svc.engine_process.step_loop import StepLoop

ROWS = (1, 4, 16, 64)
WAITING = 200
"""Requests that wait while all slots are busy, in one more load."""
ALLOWED_STEP_US, ALLOWED_ROW_US = 60.0, 12.0
STEPS, QUICK_STEPS, ROUNDS = 1000, 40, 5
PROMPT_TOKENS, VOCABULARY = 400, 152_000
STEP_TIMES = {1: 0.012, 4: 0.028, 16: 0.055, 64: 0.16}
"""Seconds of a step by rows, and of a row by tokens: a model of half a billion parameters."""
GIL_S = 0.0002
"""How long a decode call leaves the interpreter to the thread that writes outputs."""
STEP, WRITER = "step thread", "writing thread"
LIMITS = NativeLimits(2048, 128, 64, 4096, VOCABULARY)


class _Load(NamedTuple):
    rows: int
    waiting: int = 0

    def name(self, thread: str) -> str:
        """The name in the report."""
        return f"{thread}, {self.rows} rows" + (f", {self.waiting} wait" if self.waiting else "")


LOADS = (*map(_Load, ROWS), _Load(ROWS[-1], WAITING))


class _Done(BaseException):
    """Ends the endless loop of a thread."""


class _EmptySampler:
    def accept(self, token: int) -> None:
        """Keep no history, as a chain without penalties."""

    def close(self) -> None:
        """Free nothing."""


class _EmptyBackend:
    """Computes nothing and samples random tokens; its time passes with each decode call.

    `step_us` has the processor times of the step thread from one call of all rows to the next,
    without that of `decode` and `sample`. After `steps` of them `decode` raises `_Done`.
    """

    limits = LIMITS
    can_trim = True

    def __init__(self, rows: int, steps: int) -> None:
        self.now = 0.0
        self.step_us: list[float] = []
        self._rows = rows
        self._steps = steps
        self._tokens = Random(0)
        self._lengths = [0] * LIMITS.slots
        self._began_at: int | None = None

    def decode(self, batch: TokenBatch) -> None:
        """End the measurement of a step, and begin that of the next one."""
        entered_at = time.thread_time_ns()
        if self._began_at is not None:
            self.step_us.append((entered_at - self._began_at) / 1e3)
        if len(self.step_us) == self._steps:
            raise _Done
        for slot in batch.slots.tolist():
            self._lengths[slot] += 1
        self.now += STEP_TIMES[self._rows]
        time.sleep(GIL_S)
        is_whole = len(batch.tokens) == self._rows
        self._began_at = time.thread_time_ns() if is_whole else None

    def sample(self, tasks: Sequence[SampleTask]) -> list[SampledToken]:
        """Random tokens, which no draft predicts."""
        entered_at = time.thread_time_ns()
        sampled = [SampledToken(self._tokens.randrange(VOCABULARY), None) for _ in tasks]
        if self._began_at is not None:
            self._began_at += time.thread_time_ns() - entered_at
        return sampled

    def new_sampler(self, request: SequenceRequest) -> _EmptySampler:
        """A sampler without state."""
        return _EmptySampler()

    def use_adapters(self, stack: AdapterStack) -> None:
        """Apply nothing."""

    def trim(self, slot: int, length: int) -> bool:
        """Truncate a slot."""
        self._lengths[slot] = min(self._lengths[slot], length)
        return True

    def can_trim_to(self, slot: int, length: int) -> bool:
        """Any length is possible."""
        return True

    def slot_length(self, slot: int) -> int:
        """The tokens in a slot."""
        return self._lengths[slot]

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes of a word."""
        return b" word"

    def is_eog(self, token: int) -> bool:
        """No token ends a generation."""
        return False


class _CountingPipe:
    """Serializes outputs as a pipe does, and drops them. `thread_s` is the processor time of the
    thread that writes, which a `DeviceMemoryReport` ends."""

    thread_s = 0.0

    def send(self, output: Any) -> None:
        """Serialize an output. Raises `_Done`."""
        if isinstance(output, DeviceMemoryReport):
            raise _Done
        ForkingPickler.dumps(output)
        self.thread_s = time.thread_time()


def measure(stage: Stage) -> Iterator[Measurement]:
    """Run the step loop with each number of rows."""
    steps = stage.sizes(STEPS, QUICK_STEPS)
    for number in range(stage.rounds or stage.sizes(ROUNDS, 1)):
        for load in LOADS:
            yield from _step_costs(load, steps, number)


def _step_costs(load: _Load, steps: int, number: int) -> Iterator[Measurement]:
    """The median processor time of a step in microseconds, and that of the writing thread."""
    backend, pipe, outbox = _EmptyBackend(load.rows, steps), _CountingPipe(), OutputBatcher(0.0)
    loop = StepLoop(cast(Any, pipe), _engine(backend, load), outbox=outbox)
    writer = Thread(target=_write, args=(loop,))
    writer.start()
    with suppress(_Done):
        loop.run()
    outbox.put(DeviceMemoryReport({}))
    writer.join()
    yield Measurement(load.name(STEP), number, CORRAL, median(backend.step_us))
    yield Measurement(load.name(WRITER), number, CORRAL, 1e6 * pipe.thread_s / steps)


def _engine(backend: _EmptyBackend, load: _Load) -> Engine:
    """An engine with the requests of a load."""
    engine = Engine(
        "model",
        cast(Backend, backend),
        EngineOptions(chunk_cap=512, step_times=STEP_TIMES, token_times=STEP_TIMES),
        layout=BatchLayout(STEP_TIMES, LIMITS.slots),
        clock=lambda: backend.now,
    )
    tokens = Random(1)
    for sequence_id in range(load.rows + load.waiting):
        prompt = array("i", (tokens.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)))
        engine.submit(_request(sequence_id, prompt))
    return engine


def _request(sequence_id: int, prompt: "array[int]") -> SequenceRequest:
    """A chat with a deadline and a stop text."""
    return SequenceRequest(
        sequence_id=sequence_id,
        model="model",
        prompt=prompt,
        sampling=Sampling(),
        seed=sequence_id,
        choice=0,
        max_tokens=LIMITS.slot_tokens,
        cache_key=b"key",
        resumed=array("i"),
        stop=("\n\nUser:",),
        deadline=1e9,
    )


def _write(loop: StepLoop) -> None:
    with suppress(_Done):
        loop.write_outputs()


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the cost of a step with the allowed one."""
    results = []
    for load in LOADS:
        allowed_us = ALLOWED_STEP_US + ALLOWED_ROW_US * load.rows
        for thread, target in ((STEP, 1.0), (WRITER, None)):
            name = load.name(thread)
            values = values_by_round(measurements, name, CORRAL).values()
            ratios = tuple(value / allowed_us for value in values)
            own = median([*values])
            results.append(
                Result(name, ratios, target, own, allowed_us, "allowed", "µs", "at most")
            )
    return results


PART = Part(
    name="steps",
    title="A step without its model",
    text=(
        "The processor time of the engine's threads for a step that decodes so many rows, without"
        " that of decoding and sampling: commands, planning, batches, stop texts, events and"
        " statistics in the step thread, beside which nothing is decoded, and what another thread"
        f" sends to the frontend. Prompts of {PROMPT_TOKENS} tokens, one stop text, a backend that"
        f" does nothing. Allowed are {ALLOWED_STEP_US:.0f} µs a step and {ALLOWED_ROW_US:.0f} a"
        " row."
    ),
    measure=measure,
    conclude=conclude,
)
