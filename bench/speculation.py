"""What drafts save: tokens of a row, counted, and the time that takes, on the engine itself.

    python -m bench.speculation [--model FILE.gguf] [--rounds 3] [--output 200]

Three ways, in turns: without drafts, with them where measured times promise a gain (as served), and
always. A row of a step gives one token and what stood of its draft: that is counted, so a busy
machine gives the same figures but for the middle way, which follows its times. Every way must say
the same tokens. Texts: one to be told freely, one to be repeated, and words drawn from four, which
half repeat themselves.
"""

import argparse
import statistics
import time
from array import array
from pathlib import Path
from typing import NamedTuple

from bench.paths import BUNDLED_MODEL
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
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


class Way(NamedTuple):
    """Whether to draft, and whether to ask first what that costs."""

    name: str
    drafts: bool
    asks: bool


WAYS = (Way("without", False, True), Way("as served", True, True), Way("always", True, False))


class Text(NamedTuple):
    """A prompt and how to go on from it."""

    name: str
    prompt: str
    sampling: Sampling


class Ran(NamedTuple):
    """One run: seconds, rows that gave tokens, drafted and accepted tokens, tokens by sequence."""

    seconds: float
    rows: int
    drafted: int
    accepted: int
    tokens: dict[int, list[int]]

    @property
    def tokens_a_row(self) -> float:
        """What a row gives on average."""
        return sum(map(len, self.tokens.values())) / self.rows


class Bench:
    """Runs sequences to their end."""

    def __init__(self, backend: LlamaBackend, measured: WarmUp, output: int) -> None:
        self._backend = backend
        self._measured = measured
        self._output = output

    def texts(self) -> list[Text]:
        """What is continued."""
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

    def run(self, text: Text, count: int, way: Way) -> Ran:
        """`count` sequences with seeds of their own, at once."""
        for slot in range(SLOTS):
            self._backend.trim(slot, 0)
        engine = Engine(
            "bench",
            self._backend,
            layout=BatchLayout({}, SLOTS),
            chunk_cap=512,
            clock=time.monotonic,
            step_times=self._measured.step_times if way.asks else None,
            token_times=self._measured.token_times if way.asks else None,
        )
        for i in range(count):
            engine.submit(self._request(i, text, MAX_DRAFT if way.drafts else 0))
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
        return Ran(
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


def report(bench: Bench, rounds: int) -> None:
    """Print a line for each text, number of sequences and way; times are medians over the rounds.

    Raises RuntimeError where a draft changed what was said.
    """
    print(f"{'text':14} {'seqs':>4} {'way':10} {'tokens a row':>12} {'stood':>11} {'time':>6}")
    for text in bench.texts():
        for count in (1, 2, SLOTS):
            ran = [[bench.run(text, count, way) for way in WAYS] for _ in range(rounds)]
            if any(run.tokens != ran[0][0].tokens for line in ran for run in line):
                raise RuntimeError(f"{text.name}, {count} at once: drafts changed the tokens")
            for column, way in enumerate(WAYS):
                last = ran[-1][column]
                ratio = statistics.median(line[column].seconds / line[0].seconds for line in ran)
                stood = f"{last.accepted} of {last.drafted}"
                print(
                    f"{text.name:14} {count:4} {way.name:10} {last.tokens_a_row:12.2f} "
                    f"{stood:>11} {ratio:6.2f}",
                    flush=True,
                )


def main() -> None:
    """Load the model, measure it, run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=int, default=200, help="tokens a sequence")
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
    report(Bench(backend, measured, options.output), options.rounds)
    backend.close()


if __name__ == "__main__":
    main()
