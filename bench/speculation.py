"""Measures speculative decoding on the engine: tokens per row, and time.

    python -m bench.speculation [--model FILE.gguf] [--draft FILE.gguf | --blocks 0,1,2,5]
                                [--rounds 3] [--output 200]

Modes, alternating: without drafts, with drafts where measured step times predict a gain (as
served), and always with drafts; the last two also with a draft model, by default that of the demo
model; --blocks makes one of some of its blocks. A row of a step yields one token and the accepted
tokens of its draft. Counts do not depend on the speed of the machine, except in the modes as
served. All modes must produce the same tokens. Texts: a story and a free continuation, a repeated
passage, and a random sequence of four words, which repeats itself partly.
"""

import argparse
import statistics
import tempfile
import time
from array import array
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.paths import BUNDLED_DRAFT, BUNDLED_MODEL
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.engine_parts import EngineOptions
from inference_svc.engine.events import Delta, Event, Finished
from inference_svc.engine.request import MAX_DRAFT, SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine.spec_decode.draft_model import DraftModel
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.warmup import WarmUp, warm_up
from inference_svc.machine import available_cores
from tools.long_model import write_blocks

SLOTS = 16
COUNTS = (1, 4, SLOTS)
DRAFT_TOKENS = 16
STORY = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"
PASSAGE = "Ada wrote the first program, Grace the first compiler, and Alan asked a question. "


class DraftMode(NamedTuple):
    """Whether to draft, whether only if measured times predict a gain, and whether with the draft
    model."""

    name: str
    drafts: bool
    predicts: bool
    with_model: bool = False


DRAFT_MODES = (
    DraftMode("without", False, True),
    DraftMode("as served", True, True),
    DraftMode("always", True, False),
)
MODEL_MODES = (
    DraftMode("model, as served", True, True, with_model=True),
    DraftMode("model, always", True, False, with_model=True),
)


class Draft(NamedTuple):
    """A draft model and its measured step times."""

    backend: LlamaBackend
    step_times: dict[int, float]


class Text(NamedTuple):
    """A prompt and the sampling of its continuation."""

    name: str
    prompt: str
    sampling: Sampling


class RunResult(NamedTuple):
    """Result of one run: time, processor time, rows with output, draft counts, and tokens by
    sequence."""

    seconds: float
    cpu_s: float
    rows: int
    drafted: int
    accepted: int
    tokens: dict[int, list[int]]

    @property
    def tokens_per_row(self) -> float:
        """Mean number of tokens per row."""
        return sum(map(len, self.tokens.values())) / self.rows


class DraftBench:
    """Runs sequences to completion."""

    def __init__(
        self, backend: LlamaBackend, measured: WarmUp, output: int, draft: Draft | None
    ) -> None:
        self._backend = backend
        self._draft = draft
        self._measured = measured
        self._output = output

    @property
    def modes(self) -> tuple[DraftMode, ...]:
        """The modes to compare."""
        return DRAFT_MODES if self._draft is None else DRAFT_MODES + MODEL_MODES

    def texts(self) -> list[Text]:
        """Return the texts to continue."""
        words = self._tokens(" a the and of")
        return [
            Text("story", STORY, Sampling(temperature=0.0)),
            Text("told freely", "Once upon a time", Sampling(temperature=0.8)),
            Text("repeated", 4 * PASSAGE, Sampling(temperature=0.0)),
            Text(
                "of four words",
                "Once upon a time",
                Sampling(temperature=2.0, allowed_token_ids=tuple(words)),
            ),
        ]

    def run(self, text: Text, count: int, mode: DraftMode) -> RunResult:
        """Run `count` concurrent sequences with different seeds."""
        for slot in range(SLOTS):
            self._backend.trim(slot, 0)
        options = EngineOptions(chunk_cap=512)
        if mode.predicts:
            measured = self._measured
            options = replace(
                options, step_times=measured.step_times, token_times=measured.token_times
            )
        layout = BatchLayout({}, SLOTS)
        engine = Engine(
            "bench",
            self._backend,
            options,
            layout=layout,
            clock=time.monotonic,
            draft_model=self._draft_model(mode),
        )
        for i in range(count):
            engine.submit(self._request(i, text, MAX_DRAFT if mode.drafts else 0))
        events: list[Event] = []
        started, cpu_started = time.perf_counter(), time.process_time()
        while engine.has_work:
            events += engine.step()
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
        deltas = [event for event in events if isinstance(event, Delta) and event.tokens]
        ends = [event for event in events if isinstance(event, Finished)]
        tokens = {
            i: [token for delta in deltas if delta.sequence_id == i for token in delta.tokens]
            for i in range(count)
        }
        return RunResult(
            seconds,
            cpu_s,
            len(deltas),
            sum(end.num_drafted for end in ends),
            sum(end.num_accepted for end in ends),
            tokens,
        )

    def _draft_model(self, mode: DraftMode) -> DraftModel | None:
        if not mode.with_model or self._draft is None:
            return None
        backend, step_times = self._draft
        for slot in range(SLOTS):
            backend.trim(slot, 0)
        times, size = step_times if mode.predicts else {}, self._backend.limits.vocabulary_size
        return DraftModel(backend, times, time.monotonic, size)

    def _request(self, i: int, text: Text, max_draft: int) -> SequenceRequest:
        return SequenceRequest(
            sequence_id=i,
            model="bench",
            prompt=self._tokens(text.prompt),
            sampling=text.sampling,
            seed=i,
            choice=0,
            max_tokens=self._output,
            cache_key=b"",
            resumed=array("i"),
            ignore_eos=True,
            reuse=False,
            max_draft=max_draft,
        )

    def _tokens(self, text: str) -> "array[int]":
        vocabulary = self._backend.vocabulary
        return array("i", vocabulary.tokenize(text, add_special=False, parse_special=True))


def report(bench: DraftBench, rounds: int) -> None:
    """Print a line for each text, number of sequences and mode; times are medians over the rounds
    of the ratio to that without drafts. Processor time is the same on a busy machine.

    Raises RuntimeError if a draft changed the output.
    """
    print(
        f"{'text':14} {'seqs':>4} {'mode':16} {'tokens/row':>12} {'accepted':>11} "
        f"{'time':>6} {'cpu':>6}"
    )
    for text in bench.texts():
        for count in COUNTS:
            results = [
                [bench.run(text, count, mode) for mode in bench.modes] for _ in range(rounds)
            ]
            if any(run.tokens != results[0][0].tokens for line in results for run in line):
                raise RuntimeError(f"{text.name}, {count} at once: drafts changed the tokens")
            for column, mode in enumerate(bench.modes):
                last = results[-1][column]
                pairs = [(line[column], line[0]) for line in results]
                time_ratio = statistics.median(run.seconds / plain.seconds for run, plain in pairs)
                cpu_ratio = statistics.median(run.cpu_s / plain.cpu_s for run, plain in pairs)
                accepted = f"{last.accepted} of {last.drafted}"
                print(
                    f"{text.name:14} {count:4} {mode.name:16} {last.tokens_per_row:12.2f} "
                    f"{accepted:>11} {time_ratio:6.2f} {cpu_ratio:6.2f}",
                    flush=True,
                )


def main() -> None:
    """Load the model, measure its step times, and run all texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=int, default=200, help="tokens per sequence")
    parser.add_argument("--threads", type=int, default=max(1, available_cores() - 1))
    parser.add_argument(
        "--draft", type=Path, help="a draft model (default: that of the demo model)"
    )
    parser.add_argument("--blocks", help="use these blocks of the demo model as a draft model")
    options = parser.parse_args()
    library.start()
    settings = BackendSettings(
        options.model,
        slots=SLOTS,
        context_tokens=options.output + 256,
        batch_tokens=512,
        ubatch_tokens=256,
        threads=options.threads,
        sampling_threads=options.threads,
        draft_tokens=DRAFT_TOKENS,
    )
    backend, draft = LlamaBackend(settings), None
    measured = _measure(backend, options.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = options.draft
        if path is None and options.model == BUNDLED_MODEL:
            path = BUNDLED_DRAFT
        if options.blocks:
            blocks = [int(each) for each in options.blocks.split(",")]
            path = write_blocks(Path(folder) / "draft.gguf", blocks, 2048)
        if path is not None:
            draft_backend = LlamaBackend(replace(settings, path=path, draft_tokens=0))
            draft = Draft(draft_backend, _measure(draft_backend, options.threads).step_times)
            print(f"step: {_ms(measured.step_times)}; draft: {_ms(draft.step_times)}")
    report(DraftBench(backend, measured, options.output, draft), options.rounds)
    backend.close()
    if draft is not None:
        draft.backend.close()


def _measure(backend: LlamaBackend, threads: int) -> WarmUp:
    return warm_up(backend, cores=threads, threads=threads, budget_s=10.0)


def _ms(step_times: dict[int, float]) -> str:
    return ", ".join(f"{1000 * step_times[rows]:.2f} ms for {rows}" for rows in sorted(step_times))


if __name__ == "__main__":
    main()
