"""Builders for the engine's tests."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.engine_parts import EngineOptions
from inference_svc.engine.events import (
    ChosenLogprob,
    Delta,
    Event,
    Failed,
    Finished,
    Logprob,
    PromptToken,
    PromptTokens,
    Started,
)
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine.spec_decode.draft_model import DraftModel
from tests.support.fake_backend import END_TOKEN, FakeBackend, next_token, token_score

EventT = TypeVar("EventT", PromptTokens, Delta, Started, Finished)


def make_request(
    sequence_id: int = 0, prompt: Sequence[int] = (65, 66, 67), **changes: Any
) -> SequenceRequest:
    """A small greedy request; `changes` are fields of `SequenceRequest`."""
    request = SequenceRequest(
        sequence_id=sequence_id,
        model="m",
        prompt=array("i", prompt),
        sampling=Sampling(temperature=0.0),
        seed=1,
        choice=0,
        max_tokens=8,
        cache_key=b"project",
        resumed=array("i"),
    )
    return replace(request, **changes)


def expected_tokens(
    prompt: Sequence[int], count: int, *, seed: int = 1, choice: int = 0, end_after: int = 1000
) -> list[int]:
    """The first `count` tokens that the fake model generates, fewer if it ends earlier."""
    tokens = list(prompt)
    for draw in range(count):
        tokens.append(next_token(tokens, seed, choice, draw, end_after=end_after))
        if tokens[-1] == END_TOKEN:
            break
    return tokens[len(prompt) :]


def expected_prompt_tokens(prompt: Sequence[int]) -> list[PromptToken]:
    """The tokens of a prompt as the fake model scores them, without alternatives."""
    tokens = []
    for i, token in enumerate(prompt):
        piece = bytes([token]) if token >= 0 else b""
        score = None
        if i and min(token, prompt[i - 1]) >= 0:
            rank, value = token_score(prompt[:i], token)
            score = ChosenLogprob(Logprob(token, piece, value), (), rank)
        tokens.append(PromptToken(token, piece, score))
    return tokens


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


class EngineBench:
    """An engine on the fake backend. Collects events; checks integrity after each decode call.

    `step_times` are those of the layout, and `measured` those that predict the times of steps;
    `options` are other fields of `EngineOptions`.
    """

    def __init__(
        self,
        backend: FakeBackend | None = None,
        *,
        step_times: dict[int, float] | None = None,
        chunk_cap: int = 16,
        measured: dict[int, float] | None = None,
        draft_model: DraftModel | None = None,
        **options: Any,
    ) -> None:
        self.clock = ManualClock()
        self.backend = backend or FakeBackend()
        self.engine = Engine(
            "m",
            self.backend,
            EngineOptions(chunk_cap, step_times=measured or {}, **options),
            layout=BatchLayout(
                step_times or {}, self.backend.limits.slots, can_fill=self.backend.can_trim
            ),
            clock=self.clock,
            draft_model=draft_model,
        )
        self.events: list[Event] = []
        self._calls: Iterator[list[Event]] = iter(())  # remaining decode calls of the current step

    def submit(self, *requests: SequenceRequest) -> None:
        for request in requests:
            self.engine.submit(request)

    def step(self) -> list[Event]:
        first = self.call()
        return first + [event for events in iter(self._rest_of_step, None) for event in events]

    def call(self) -> list[Event]:
        """Run one decode call, or the end of a step."""
        events = self._rest_of_step()
        if events is not None:
            return events
        self._calls = self.engine.decode_calls()
        return self._rest_of_step() or []

    def _rest_of_step(self) -> list[Event] | None:
        events = next(self._calls, None)
        if events is not None:
            self.engine.check_integrity()
            self.events += events
        return events

    def run(self, limit: int = 1000) -> None:
        """Step until the engine has no work."""
        for _ in range(limit):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"the engine still has work after {limit} steps")

    def text(self, sequence_id: int) -> str:
        return "".join(delta.text for delta in self.deltas(sequence_id))

    def tokens(self, sequence_id: int) -> list[int]:
        """All emitted tokens of a sequence."""
        return [token for delta in self.deltas(sequence_id) for token in delta.tokens]

    def prompt_tokens(self, sequence_id: int) -> list[PromptToken]:
        """The prompt tokens that were sent with log probabilities."""
        events = self._of_sequence(PromptTokens, sequence_id)
        return [token for event in events for token in event.tokens]

    def deltas(self, sequence_id: int) -> list[Delta]:
        return self._of_sequence(Delta, sequence_id)

    def started(self, sequence_id: int) -> Started:
        (event,) = self._of_sequence(Started, sequence_id)
        return event

    def finished(self, sequence_id: int) -> Finished:
        (event,) = self._of_sequence(Finished, sequence_id)
        return event

    def _of_sequence(self, kind: type[EventT], sequence_id: int) -> list[EventT]:
        of_kind = (event for event in self.events if isinstance(event, kind))
        return [event for event in of_kind if event.sequence_id == sequence_id]

    def failures(self) -> dict[int, Failed]:
        return {event.sequence_id: event for event in self.events if isinstance(event, Failed)}
