"""What becomes of a request that loses its engine, at each kind of engine: the table of
docs/operate/engines.md, whose rows tests/architecture/test_engine_page.py has with their tests."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Delta, Event, Failed, Finished, FinishReason, Started
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from inference_svc.engine.request import Submit
from inference_svc.engine_client.continuation import continuation
from inference_svc.output_format import OutputFormat, OutputFormatKind
from svc_kit.errors import (
    DecodeFailed,
    DomainError,
    EngineCrashed,
    EngineRestarting,
    FeatureUnsupported,
)
from tests.support.byte_engine import END, PROMPT, Attempt, ByteEngine, byte_request, connected

TEXT = "Grüße, 世界 and more"
REPLY = (*TEXT.encode(), END)
FAILURE = b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\n{}"
FORM = OutputFormat(OutputFormatKind.JSON_SCHEMA, "{}", "constraint.json_schema")
CONSTRAINT = Constraint('{"grammars": [{"json_schema": {}}]}', FORM.field, FORM)
OPEN_REASONING = ReasoningSpec("<t>", ("</t>",), is_open=True)

pytestmark = pytest.mark.parametrize("kind", ["llama_server", "vllm", "sglang"])


def two_engines(kind: str, *attempts: Attempt) -> tuple[ByteEngine, ByteEngine]:
    """Two engines that answer in turn as the attempts say, and then completely."""
    shared = list(attempts)
    first, second = (ByteEngine(REPLY, kind, attempts=shared) for _ in range(2))
    second.bodies = first.bodies
    return first, second


async def events_of(engines: Sequence[ByteEngine], **request: Any) -> list[Event]:
    async with connected(*engines) as client:
        return await client.run(byte_request(request_id="r", **request))


def text_of(events: Sequence[Event]) -> str:
    return "".join(each.text for each in events if isinstance(each, Delta))


def tokens_of(events: Sequence[Event]) -> list[int]:
    return [token for each in events if isinstance(each, Delta) for token in each.tokens]


def end_of(events: Sequence[Event]) -> Finished:
    (finished,) = (each for each in events if isinstance(each, Finished))
    return finished


def error_of(events: Sequence[Event]) -> DomainError:
    (failed,) = (each.error for each in events if isinstance(each, Failed))
    return failed


@pytest.mark.parametrize("lost_after", [0, 1, 3, 9, len(REPLY) - 1])
async def test_a_text_goes_on_without_repetition_or_gap(kind: str, lost_after: int) -> None:
    """Three tokens end in the middle of a character."""
    events = await events_of(two_engines(kind, Attempt(lost_after=lost_after)))
    assert text_of(events) == TEXT
    assert tokens_of(events) == list(REPLY)
    assert end_of(events).num_output_tokens == len(REPLY)
    assert sum(isinstance(each, Started) for each in events) == 1


async def test_a_stop_text_across_the_seam_ends_the_text(kind: str) -> None:
    engines = two_engines(kind, Attempt(lost_after=len("Grüße, 世界 an".encode())))
    events = await events_of(engines, stop=("and",))
    assert text_of(events) == "Grüße, 世界 "
    assert end_of(events).stop_text == "and"


async def test_a_reasoning_goes_on_as_a_reasoning(kind: str) -> None:
    engines = two_engines(kind, Attempt(lost_after=4))
    for engine in engines:
        engine.reply = (*b"think</t>said", END)
    events = await events_of(engines, reasoning=OPEN_REASONING)
    assert tokens_of(events) == [*b"think</t>said", END]
    assert end_of(events).num_reasoning_tokens == len("think")


async def test_each_token_has_its_log_probabilities_after_a_loss(kind: str) -> None:
    engines = two_engines(kind, Attempt(lost_after=1))
    events = await events_of(engines, top_logprobs=1)
    found = [each for event in events if isinstance(event, Delta) for each in event.logprobs]
    assert [each.chosen.token for each in found] == list(REPLY)


async def test_a_constrained_output_begins_again_if_nothing_was_shown(kind: str) -> None:
    engines = two_engines(kind, Attempt(lost_after=0))
    assert text_of(await events_of(engines, constraint=CONSTRAINT)) == TEXT


async def test_a_constrained_output_that_was_shown_ends_with_its_engine(kind: str) -> None:
    engines = two_engines(kind, Attempt(lost_after=4))
    events = await events_of(engines, constraint=CONSTRAINT)
    assert error_of(events) == EngineRestarting(phase="running")


JSON = '{"city": "Zürich", "size": [1, 2]}'
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "size": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["city", "size"],
    "additionalProperties": False,
}
CHOICES = ["one", "one and two", JSON]
REGEX = r'\{"city": "[^"]*", "\w+": \[(\d(, )?)*\]\}'
FORMATS = {
    "a schema": OutputFormat(OutputFormatKind.JSON_SCHEMA, json.dumps(SCHEMA), "format"),
    "choices": OutputFormat(OutputFormatKind.CHOICES, json.dumps(CHOICES), "format"),
    "a regular expression": OutputFormat(OutputFormatKind.REGEX, REGEX, "format"),
}
GRAMMARS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "llama_server": lambda body: body["grammar"],
    "vllm": lambda body: body["structured_outputs"]["grammar"],
    "sglang": lambda body: body["ebnf"],
}


def two_that_write_json(kind: str, *attempts: Attempt) -> tuple[ByteEngine, ByteEngine]:
    engines = two_engines(kind, *attempts)
    for engine in engines:
        engine.reply = (*JSON.encode(), END)
    return engines


def within(form: OutputFormat) -> Constraint:
    return Constraint('{"grammars": [{"json_schema": {}}]}', form.field, form)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("lost_after", [1, 10, len(JSON)])
async def test_an_output_in_a_format_goes_on_with_the_grammar_of_its_rest(
    kind: str, form: OutputFormat, lost_after: int
) -> None:
    engines = two_that_write_json(kind, Attempt(lost_after=lost_after))
    events = await events_of(engines, constraint=within(form))
    _, second = engines[0].bodies
    written = JSON.encode()[:lost_after].decode()

    assert text_of(events) == JSON
    assert end_of(events).num_output_tokens == len(JSON.encode()) + 1
    assert GRAMMARS[kind](second) == continuation(form, written)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
async def test_a_complete_output_in_a_format_ends_without_another_engine(
    kind: str, form: OutputFormat
) -> None:
    engines = two_that_write_json(kind, Attempt(lost_after=len(JSON.encode())))
    events = await events_of(engines, constraint=within(form))

    assert (text_of(events), end_of(events).reason) == (JSON, FinishReason.STOP)
    assert len(engines[0].bodies) == 1


@pytest.mark.parametrize("count", [5, len(JSON.encode())])
async def test_an_output_in_a_format_is_resumed(kind: str, count: int) -> None:
    """As a turn of a run or of a background response."""
    engines = two_that_write_json(kind)
    form, resumed = FORMATS["a schema"], list(JSON.encode()[:count])
    events = await events_of(engines, constraint=within(form), resumed=resumed)

    assert text_of(events).encode() == JSON.encode()[count:]
    assert end_of(events).reason is FinishReason.STOP
    assert len(engines[0].bodies) == (count == 5)


WHOLE_AFTER = 3
WITHOUT_REST = {
    "properties in another order": (
        OutputFormat(
            OutputFormatKind.JSON_SCHEMA,
            '{"type": "object", "properties": {"size": {}, "town": {}}}',
            "format",
        ),
        WHOLE_AFTER,
    ),
    "a regular expression": (OutputFormat(OutputFormatKind.REGEX, r"(?s).*", "format"), 4),
    "a grammar in Lark": (OutputFormat(OutputFormatKind.LARK, "start: /.*/", "format"), 4),
    "half of a character": (FORMATS["a schema"], JSON.index("ü") + 1),
}


@pytest.mark.parametrize(("form", "lost_after"), WITHOUT_REST.values(), ids=WITHOUT_REST)
async def test_an_output_whose_rest_is_no_grammar_ends_with_its_engine(
    kind: str, form: OutputFormat, lost_after: int
) -> None:
    engines = two_that_write_json(kind, Attempt(lost_after=lost_after))
    if kind == "llama_server" and lost_after != WHOLE_AFTER:
        pytest.skip("it takes no regular expressions, and writes whole characters")
    events = await events_of(engines, constraint=within(form))

    assert error_of(events) == EngineRestarting(phase="running")
    assert len(engines[0].bodies) == 1


async def test_a_sampled_output_goes_on_with_the_seed_of_its_request(kind: str) -> None:
    """The engine's generator begins anew, since it gets the seed again."""
    engines = two_engines(kind, Attempt(lost_after=4))
    sampling = replace(byte_request().sampling, temperature=1.0)
    events = await events_of(engines, sampling=sampling, seed=7)
    first, second = engines[0].bodies
    assert text_of(events) == TEXT
    assert second["prompt"] == [*PROMPT, *tokens_of(events)[: len(second["prompt"]) - len(PROMPT)]]
    name = "sampling_seed" if kind == "sglang" else "seed"
    assert (first[name], second[name]) == (7, 7)


async def test_each_choice_goes_on_by_itself(kind: str) -> None:
    engines = two_engines(kind, Attempt(lost_after=4), Attempt(), Attempt(lost_after=2))
    async with connected(*engines) as client:
        for choice in range(3):
            client.send(Submit(byte_request(choice, choice=choice)))
        texts = [text_of(await client.end_of(choice)) for choice in range(3)]
    assert texts == [TEXT] * 3
    assert len(engines[0].bodies) == 5


async def test_a_constrained_output_cannot_be_resumed(kind: str) -> None:
    """As a turn of a run or of a background response would be. No engine is asked."""
    engines = two_engines(kind)
    events = await events_of(engines, constraint=CONSTRAINT, resumed=REPLY[:4])
    error = error_of(events)
    assert isinstance(error, FeatureUnsupported)
    assert "'resume' with 'constraint.json_schema'" in str(error)
    assert engines[0].bodies == []


async def test_a_request_that_loses_three_engines_ends(kind: str) -> None:
    engines = two_engines(kind, *(Attempt(lost_after=each) for each in (1, 2, 0)))
    assert error_of(await events_of(engines)) == EngineCrashed(times=3)


async def test_a_request_that_engines_fail_twice_ends(kind: str) -> None:
    engines = two_engines(kind, Attempt(raw=FAILURE), Attempt(raw=FAILURE))
    assert error_of(await events_of(engines)) == DecodeFailed(request_id="r")
