"""Measures speculative decoding on the engine: tokens per row, and time.

    python -m bench.speculation [--model FILE.gguf] [--rounds 3] [--output 200]

Three modes, alternating: without drafts, with drafts where measured step times predict a gain (as
served), and always with drafts. A row of a step yields one token and the accepted tokens of its
draft. Counts do not depend on the speed of the machine, except in the mode "as served". All modes
must produce the same tokens. Texts: a free continuation, a repeated passage, and a random sequence
of four words, which repeats itself partly.
"""

import argparse
import statistics
import time
from array import array
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.paths import BUNDLED_MODEL
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.engine_parts import EngineOptions
from inference_svc.engine.events import Delta, Event, Finished
from inference_svc.engine.request import MAX_DRAFT, SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.warmup import WarmUp, warm_up
from inference_svc.machine import available_cores

SLOTS = 4
DRAFT_TOKENS = 16
PASSAGE = "Ada wrote the first program, Grace the first compiler, and Alan asked a question. "


class DraftMode(NamedTuple):
    """Whether to draft, and whether only if measured times predict a gain."""

    name: str
    drafts: bool
    predicts: bool


DRAFT_MODES = (
    DraftMode("without", False, True),
    DraftMode("as served", True, True),
    DraftMode("always", True, False),
)


class Text(NamedTuple):
    """A prompt and the sampling of its continuation."""

    name: str
    prompt: str
    sampling: Sampling


class RunResult(NamedTuple):
    """Result of one run: time, rows with output, draft counts, and tokens by sequence."""

    seconds: float
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

    def __init__(self, backend: LlamaBackend, measured: WarmUp, output: int) -> None:
        self._backend = backend
        self._measured = measured
        self._output = output

    def texts(self) -> list[Text]:
        """Return the texts to continue."""
        words = self._tokens(" a the and of")
        return [
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
        engine = Engine("bench", self._backend, options, layout=layout, clock=time.monotonic)
        for i in range(count):
            engine.submit(self._request(i, text, MAX_DRAFT if mode.drafts else 0))
        events: list[Event] = []
        started = time.perf_counter()
        while engine.has_work:
            events += engine.step()
        seconds = time.perf_counter() - started
        deltas = [event for event in events if isinstance(event, Delta) and event.tokens]
        ends = [event for event in events if isinstance(event, Finished)]
        tokens = {
            i: [token for delta in deltas if delta.sequence_id == i for token in delta.tokens]
            for i in range(count)
        }
        return RunResult(
            seconds,
            len(deltas),
            sum(end.num_drafted for end in ends),
            sum(end.num_accepted for end in ends),
            tokens,
        )

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
        return array("i", vocabulary.tokenize(text, add_special=False, parse_special=False))


def report(bench: DraftBench, rounds: int) -> None:
    """Print a line for each text, number of sequences and mode; times are medians over the rounds.

    Raises RuntimeError if a draft changed the output.
    """
    print(f"{'text':14} {'seqs':>4} {'mode':10} {'tokens/row':>12} {'accepted':>11} {'time':>6}")
    for text in bench.texts():
        for count in (1, 2, SLOTS):
            results = [
                [bench.run(text, count, mode) for mode in DRAFT_MODES] for _ in range(rounds)
            ]
            if any(run.tokens != results[0][0].tokens for line in results for run in line):
                raise RuntimeError(f"{text.name}, {count} at once: drafts changed the tokens")
            for column, mode in enumerate(DRAFT_MODES):
                last = results[-1][column]
                ratio = statistics.median(
                    line[column].seconds / line[0].seconds for line in results
                )
                accepted = f"{last.accepted} of {last.drafted}"
                print(
                    f"{text.name:14} {count:4} {mode.name:10} {last.tokens_per_row:12.2f} "
                    f"{accepted:>11} {ratio:6.2f}",
                    flush=True,
                )


def main() -> None:
    """Load the model, measure its step times, and run all texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=int, default=200, help="tokens per sequence")
    parser.add_argument("--threads", type=int, default=max(1, available_cores() - 1))
    options = parser.parse_args()
    library.start()
    backend = LlamaBackend(
        BackendSettings(
            options.model,
            slots=SLOTS,
            context_tokens=options.output + 256,
            batch_tokens=512,
            ubatch_tokens=256,
            threads=options.threads,
            sampling_threads=options.threads,
            draft_tokens=DRAFT_TOKENS,
        )
    )
    measured = warm_up(backend, cores=options.threads, threads=options.threads, budget_s=10.0)
    report(DraftBench(backend, measured, options.output), options.rounds)
    backend.close()


if __name__ == "__main__":
    main()
