"""Constrained output on llama.cpp and the demo model, from the specification to the tokens."""

import json
import re
from array import array
from dataclasses import replace
from typing import Any

import pytest

from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Event, Failed, FinishReason
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling
from inference_svc.llama.backend import LlamaBackend
from inference_svc.structured_output.spec import (
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
)
from svc_kit.errors import GrammarInvalid
from tests.support.llama_engines import (
    compile_format,
    compile_spec,
    deltas,
    finished_event,
    make_engine,
    output_text,
    output_tokens,
    run_engine,
    select_events,
    text_request,
)

TURN = "<|im_start|>user\nTell me about Mira.<|im_end|>\n<|im_start|>assistant\n"
UNFILTERED = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
SLOTS = 4
RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["fox", "bear", "é…🦊"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {
            "type": "array",
            "maxItems": 2,
            "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
    },
    "required": ["name", "kind", "age", "tags"],
    "additionalProperties": False,
}
THREE_DIGITS = OutputFormat(OutputFormatKind.REGEX, "[0-9]{3}", "constraint")


def _compile_regex(backend: LlamaBackend, pattern: str) -> Constraint:
    return compile_format(backend, OutputFormatKind.REGEX, pattern)


def _compile_schema(backend: LlamaBackend, schema: dict[str, Any]) -> Constraint:
    return compile_format(backend, OutputFormatKind.JSON_SCHEMA, json.dumps(schema))


@pytest.fixture
def record(backend: LlamaBackend) -> Constraint:
    return _compile_schema(backend, RECORD)


def _request(
    backend: LlamaBackend, constraint: Constraint | None, sequence_id: int = 0, **changes: Any
) -> SequenceRequest:
    changes = {"max_tokens": 200, "sampling": UNFILTERED, "reuse": False, **changes}
    return text_request(backend, sequence_id, TURN, constraint=constraint, **changes)


def _run(backend: LlamaBackend, *requests: SequenceRequest) -> list[Event]:
    return run_engine(make_engine(backend), *requests)


def _check_record(text: str) -> None:
    record = json.loads(text)
    assert list(record) == list(RECORD["properties"])
    assert len(record["name"]) <= 12
    assert record["kind"] in RECORD["properties"]["kind"]["enum"]
    assert 0 <= record["age"] <= 99
    assert all(isinstance(flag, bool) for tags in record["tags"] for flag in tags)
    assert text == json.dumps(record, ensure_ascii="\\u" in text), "not compact"


def test_json_follows_its_schema_at_any_temperature(
    backend: LlamaBackend, record: Constraint
) -> None:
    """Forty seeds at temperature 1.5 give forty valid compact records with keys in order."""
    for start in range(0, 40, SLOTS):
        requests = [_request(backend, record, i, seed=start + i) for i in range(SLOTS)]
        events = _run(backend, *requests)
        for i in range(SLOTS):
            _check_record(output_text(events, i))
            assert finished_event(events, i)[1:4] == (FinishReason.STOP, None, None)


FORMATS = {
    "regex": (OutputFormatKind.REGEX, r"[A-Z][a-zé]{2,9} is \d{1,3}( years old)?\.", None),
    "lark": (
        OutputFormatKind.LARK,
        'start: WORD (", " WORD)~2\nWORD: /[a-z]{1,5}/',
        r"[a-z]+(, [a-z]+){2}",
    ),
    "gbnf": (
        OutputFormatKind.GBNF,
        'root ::= "a" [0-9] x? "é" | "none"\nx ::= [x-z]',
        r"a[0-9][x-z]?é|none",
    ),
    "choices": (OutputFormatKind.CHOICES, '["yes", "no", "ja \\u00e9\\u2026", "\\"q\\"\\n"]', None),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_notation_is_enforced(backend: LlamaBackend, name: str) -> None:
    """With twelve seeds, the whole text matches, also outside ASCII."""
    kind, source, pattern = FORMATS[name]
    constraint = compile_format(backend, kind, source)
    for seed in range(12):
        events = _run(backend, _request(backend, constraint, seed=seed))
        text = output_text(events)
        if name == "choices":
            assert text in json.loads(source)
        else:
            assert re.fullmatch(pattern or source, text), text
        assert finished_event(events).reason is FinishReason.STOP


@pytest.mark.batch_invariant
def test_max_tokens_limits_constrained_output(backend: LlamaBackend, record: Constraint) -> None:
    """Sampled and forced tokens both count; the finish reason is `length`."""
    whole = output_tokens(_run(backend, _request(backend, record)))
    for limit in range(len(whole)):
        events = _run(backend, _request(backend, record, max_tokens=limit))

        assert output_tokens(events) == whole[:limit]
        assert finished_event(events).reason is FinishReason.LENGTH


@pytest.mark.parametrize("stop", ['"name": ', '", "kind'])
def test_a_stop_text_ends_constrained_output(
    backend: LlamaBackend, record: Constraint, stop: str
) -> None:
    """Also inside a run of forced tokens, of which the rest is not emitted."""
    request = _request(backend, record)
    whole = output_text(_run(backend, request))
    events = _run(backend, replace(request, stop=(stop,)))

    assert output_text(events) == whole.partition(stop)[0]
    assert finished_event(events)[1:3] == (FinishReason.STOP, stop)


@pytest.mark.batch_invariant
def test_constrained_rows_do_not_affect_unconstrained_rows(
    backend: LlamaBackend, record: Constraint
) -> None:
    """Tokens and log probabilities are bit-identical beside constrained sequences and beside
    unconstrained ones."""
    sixty_letters = _compile_regex(backend, "[a-f]{60}")
    free, companions = (
        [
            _request(
                backend, None, i, seed=i, max_tokens=40, ignore_eos=True, top_logprobs=logprobs
            )
            for i in sequence_ids
        ]
        for sequence_ids, logprobs in (((0, 2), 3), ((1, 3), None))
    )
    constrained = [
        _request(backend, record, 1, seed=5),
        _request(backend, sixty_letters, 3, seed=6),
    ]
    mixed = _run(backend, free[0], constrained[0], free[1], constrained[1])
    unconstrained = _run(backend, free[0], companions[0], free[1], companions[1])

    for i in (0, 2):
        assert [(delta.tokens, delta.logprobs) for delta in deltas(mixed, i)] == [
            (delta.tokens, delta.logprobs) for delta in deltas(unconstrained, i)
        ]
    _check_record(output_text(mixed, 1))


RESUMABLE = {
    "unfiltered": UNFILTERED,
    "defaults": Sampling(),
    "penalties": Sampling(temperature=1.2, repetition_penalty=1.3, dry=Dry(multiplier=2.0)),
}


@pytest.mark.parametrize("name", RESUMABLE)
@pytest.mark.batch_invariant
def test_resume_continues_constrained_output_token_for_token(
    backend: LlamaBackend, record: Constraint, name: str
) -> None:
    """From any position, including inside a forced run and when only the end is missing."""
    request = _request(backend, record, sampling=RESUMABLE[name], seed=3)
    whole = output_tokens(_run(backend, request))
    for cut in range(len(whole) + 1):
        events = _run(backend, replace(request, resumed=array("i", whole[:cut])))

        assert output_tokens(events) == whole[cut:]
        assert finished_event(events)[1:5] == (FinishReason.STOP, None, None, len(whole))


def test_resumed_tokens_that_violate_the_grammar_fail_their_sequence(
    backend: LlamaBackend,
) -> None:
    """Other sequences continue."""
    constraint = _compile_regex(backend, "[0-9]{5}")
    letters = backend.vocabulary.tokenize("abc", add_special=False, parse_special=False)
    events = _run(
        backend,
        _request(backend, constraint, resumed=array("i", letters)),
        _request(backend, constraint, 1),
    )

    (failed,) = select_events(events, Failed)
    assert failed.sequence_id == 0
    assert isinstance(failed.error, GrammarInvalid)
    assert re.fullmatch("[0-9]{5}", output_text(events, 1))


@pytest.mark.batch_invariant
def test_constrained_output_depends_on_seed_and_choice(
    backend: LlamaBackend, record: Constraint
) -> None:
    """Cached matchers and new ones give the same tokens; each of `n` choices differs."""
    choices = [_request(backend, record, i, choice=i) for i in range(SLOTS)]
    first = _run(backend, *choices)
    for i in range(SLOTS):
        again = _run(backend, _request(backend, record, choice=i))
        assert output_tokens(again) == output_tokens(first, i)
    assert len({output_text(first, i) for i in range(SLOTS)}) == SLOTS


def test_log_probabilities_are_computed_before_masking(
    backend: LlamaBackend, record: Constraint
) -> None:
    """One for each token, including forced ones; finite and at most zero."""
    events = _run(backend, _request(backend, record, top_logprobs=2))

    _check_record(output_text(events))
    logprobs = [entry for delta in deltas(events) for entry in delta.logprobs]
    assert [entry.chosen.token for entry in logprobs] == output_tokens(events)
    assert all(-100 < entry.chosen.logprob <= 0 for entry in logprobs)
    assert any(entry.top[0].logprob > entry.chosen.logprob for entry in logprobs)


def test_forced_tokens_are_not_decoded_one_by_one(backend: LlamaBackend) -> None:
    """A record takes fewer than half as many steps as it has tokens."""
    schema = {**RECORD, "properties": {**RECORD["properties"], "name": {"const": "Mira the fox"}}}
    engine = make_engine(backend)
    request = _request(backend, _compile_schema(backend, schema), reuse=True)
    events = run_engine(engine, request)

    assert engine.num_steps < len(output_tokens(events)) / 2


def test_a_long_forced_run_is_computed_in_rows_of_32(backend: LlamaBackend) -> None:
    """It can be resumed at any token."""
    text = " ".join(f"word{n}" for n in range(60))
    request = _request(backend, _compile_schema(backend, {"const": text}), max_tokens=400)
    engine = make_engine(backend)
    events = run_engine(engine, request)
    tokens = output_tokens(events)

    assert output_text(events) == json.dumps(text)
    assert len(tokens) > 120
    assert engine.num_steps <= len(tokens) / 32 + 2
    for cut in range(20, len(tokens), 17):
        resumed = _run(backend, replace(request, resumed=array("i", tokens[:cut])))
        assert output_tokens(resumed) == tokens[cut:]


SAMPLERS = {
    "greedy": Sampling(temperature=0.0),
    "defaults": Sampling(),
    "mirostat": Sampling(mirostat=Mirostat(2)),
    "adaptive": Sampling(adaptive=Adaptive(0.3)),
    "typical": Sampling(typical_p=0.5, xtc_probability=0.5, xtc_threshold=0.05),
    "logit bias of an allowed token": Sampling(logit_bias=((123, -100.0),), temperature=1.0),
    "only other tokens allowed": Sampling(allowed_token_ids=(5, 6, 7)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_obeys_the_grammar(
    backend: LlamaBackend, record: Constraint, name: str
) -> None:
    """Masks are applied before the filters, and override settings that allow no valid token."""
    request = _request(backend, record, sampling=SAMPLERS[name], min_tokens=190, ignore_eos=True)
    events = _run(backend, request)

    if finished_event(events).reason is FinishReason.STOP:
        _check_record(output_text(events))
    assert output_text(events).startswith('{"name": "')


def test_an_open_ended_grammar_ends_with_an_end_token(backend: LlamaBackend) -> None:
    """The model may generate one only where the text is complete."""
    constraint = _compile_regex(backend, "[a-z ]{3,}")
    stop_tokens = set()
    for seed in range(10):
        events = _run(backend, _request(backend, constraint, seed=seed, max_tokens=60))
        assert re.fullmatch("[a-z ]{3,}", output_text(events))
        stop_tokens.add(finished_event(events).stop_token)
    assert stop_tokens & backend.vocabulary.end_tokens

    events = _run(backend, _request(backend, constraint, max_tokens=60, ignore_eos=True))
    assert finished_event(events).reason is FinishReason.LENGTH


def test_a_grammar_of_the_empty_text_generates_no_tokens(backend: LlamaBackend) -> None:
    constraint = compile_format(backend, OutputFormatKind.LARK, 'start: ""')
    events = _run(backend, _request(backend, constraint))

    assert output_text(events) == ""
    assert finished_event(events).reason is FinishReason.STOP


def _tools(**changes: Any) -> ToolCallSpec:
    weather: dict[str, Any] = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
    }
    tools = (
        CallableTool("weather", json.dumps(weather | {"required": ["city"]}), False, "tools[0]"),
        CallableTool("now", "", False, "tools[1]"),
    )
    syntaxes = FAMILIES[ToolCallFormat.HERMES].syntaxes
    return replace(ToolCallSpec(syntaxes, tools, required=True, several=True), **changes)


CALL = (
    r'<tool_call>\n\{"name": ("weather", "arguments": \{"city": "[^\n]*"\}'
    r'|"now", "arguments": \{\})\}\n</tool_call>'
)


@pytest.mark.parametrize("several", [True, False])
def test_required_tool_calls_are_the_whole_output(backend: LlamaBackend, several: bool) -> None:
    """One or more calls of the offered tools, with arguments that match their schemas."""
    constraint = compile_spec(backend, OutputSpec(None, _tools(several=several), None))
    texts = [
        output_text(_run(backend, _request(backend, constraint, seed=seed, max_tokens=150)))
        for seed in range(8)
    ]

    pattern = rf"{CALL}([ \t\n]{{0,4}}{CALL})*" if several else CALL
    assert [text for text in texts if not re.fullmatch(pattern, text) and len(text) < 300] == []
    assert {"weather" in text for text in texts} == {True, False}


def test_markers_of_tool_calls_may_be_control_tokens(backend: LlamaBackend) -> None:
    """The control token is generated, not its text."""
    marker = backend.vocabulary.control_tokens["<|im_start|>"]
    syntax = FAMILIES[ToolCallFormat.HERMES].syntaxes[0]
    marked = replace(syntax, head=syntax.head.replace("<tool_call>", "<|im_start|>"))
    spec = OutputSpec(None, _tools(syntaxes=(marked,), several=False), None)
    events = _run(backend, _request(backend, compile_spec(backend, spec), special_tokens=True))

    assert output_tokens(events)[0] == marker
    assert re.fullmatch(CALL.replace("<tool_call>", r"<\|im_start\|>", 1), output_text(events))


def test_an_output_format_may_be_combined_with_optional_tool_calls(backend: LlamaBackend) -> None:
    """The output is either the content or a call, never both."""
    spec = OutputSpec(THREE_DIGITS, _tools(required=False, several=False), None)
    constraint = compile_spec(backend, spec)
    for seed in range(6):
        text = output_text(_run(backend, _request(backend, constraint, seed=seed)))
        assert re.fullmatch(rf"[0-9]{{3}}|{CALL}", text), text


def _compile_with_reasoning(backend: LlamaBackend, *, is_open: bool) -> Constraint:
    reasoning = Reasoning("<think>", "</think>", is_open=is_open)
    return compile_spec(backend, OutputSpec(THREE_DIGITS, None, reasoning))


def test_content_is_constrained_after_open_reasoning(backend: LlamaBackend) -> None:
    """Reasoning itself is unconstrained."""
    constraint = _compile_with_reasoning(backend, is_open=True)
    tokenize = backend.vocabulary.tokenize
    reasoning = tokenize("Well. {", add_special=False, parse_special=False)
    reasoning += tokenize("</think>", add_special=False, parse_special=True)
    events = _run(backend, _request(backend, constraint, resumed=array("i", reasoning)))

    assert re.fullmatch(r"\s{0,4}[0-9]{3}", output_text(events)), output_text(events)


def test_reasoning_is_optional_unless_the_prompt_opens_it(backend: LlamaBackend) -> None:
    """The constrained content follows with and without reasoning."""
    constraint = _compile_with_reasoning(backend, is_open=False)
    sampling = Sampling(temperature=0.0)
    text = output_text(_run(backend, _request(backend, constraint, sampling=sampling)))

    assert re.fullmatch(r"(<think>.*</think>\s{0,4})?[0-9]{3}", text, re.DOTALL), text
    thinking = backend.vocabulary.tokenize("<think>", add_special=False, parse_special=True)
    request = _request(backend, constraint, resumed=array("i", thinking), max_tokens=20)
    assert not re.fullmatch("[0-9]{3}", output_text(_run(backend, request)))


def test_a_grammar_that_exceeds_its_step_limit_fails_its_sequence(backend: LlamaBackend) -> None:
    """Other sequences continue."""
    expensive = _compile_regex(backend, "([a-z ]*[a-m][a-z ]{120}){4}")
    events = _run(
        backend,
        _request(backend, expensive, max_tokens=450, ignore_eos=True),
        _request(backend, _compile_regex(backend, "[0-9]{9}"), 1),
    )

    assert [type(event.error) for event in select_events(events, Failed)] == [GrammarInvalid]
    assert re.fullmatch("[0-9]{9}", output_text(events, 1))
