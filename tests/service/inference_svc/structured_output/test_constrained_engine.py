"""Constrained output on llama.cpp and the demo model, from what is asked to the tokens."""

import asyncio
import json
import re
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from inference_svc.chat.parsers import ToolCallFormat
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Delta, Event, Failed, Finished, FinishReason
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.rpc.output_constraints import TOOL_CALL_SYNTAXES
from inference_svc.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.structured_output.spec import (
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
)
from svc_kit.errors import GrammarInvalid
from svc_kit.sandbox.frames import InlineJobs
from tests.support.sequences import make_request

TURN = "<|im_start|>user\nTell me about Mira.<|im_end|>\n<|im_start|>assistant\n"
WILD = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
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


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots."""
    library.start()
    backend = LlamaBackend(
        BackendSettings(
            BUNDLED_PATH,
            slots=SLOTS,
            context_tokens=512,
            batch_tokens=512,
            ubatch_tokens=256,
            threads=1,
            sampling_threads=2,
        )
    )
    yield backend
    backend.close()


@pytest.fixture(autouse=True)
def _empty_slots(backend: LlamaBackend) -> None:
    for slot in range(SLOTS):
        backend.trim(slot, 0)


def _compile(backend: LlamaBackend, asked: OutputSpec) -> Constraint:
    vocabulary = backend.vocabulary
    known = GrammarVocabulary(
        vocabulary.size, vocabulary.control_tokens, tuple(sorted(vocabulary.end_tokens))
    )
    grammar = asyncio.run(GrammarCompiler(InlineJobs()).compile(asked, known))
    return Constraint(grammar, "constraint")


def _form(backend: LlamaBackend, kind: OutputFormatKind, text: str) -> Constraint:
    return _compile(backend, OutputSpec(OutputFormat(kind, text, "constraint"), None, None))


def _schema(backend: LlamaBackend, schema: dict[str, Any]) -> Constraint:
    return _form(backend, OutputFormatKind.JSON_SCHEMA, json.dumps(schema))


def _request(
    backend: LlamaBackend, constraint: Constraint | None, **changes: Any
) -> SequenceRequest:
    tokens = backend.vocabulary.tokenize(TURN, add_special=False, parse_special=True)
    changes = {"max_tokens": 200, "sampling": WILD, "reuse": False, **changes}
    return make_request(changes.pop("sequence_id", 0), tokens, constraint=constraint, **changes)


def _run(backend: LlamaBackend, *requests: SequenceRequest) -> list[Event]:
    engine = Engine(
        "demo", backend, layout=BatchLayout({}, SLOTS), chunk_cap=64, clock=time.monotonic
    )
    for request in requests:
        engine.submit(request)
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
        engine.check_integrity()
    return events


def _deltas(events: list[Event], sequence_id: int = 0) -> list[Delta]:
    return [e for e in events if isinstance(e, Delta) and e.sequence_id == sequence_id]


def _text(events: list[Event], sequence_id: int = 0) -> str:
    return "".join(delta.text for delta in _deltas(events, sequence_id))


def _tokens(events: list[Event], sequence_id: int = 0) -> list[int]:
    return [token for delta in _deltas(events, sequence_id) for token in delta.tokens]


def _finished(events: list[Event], sequence_id: int = 0) -> Finished:
    (event,) = [e for e in events if isinstance(e, Finished) and e.sequence_id == sequence_id]
    return event


def _check_record(text: str) -> None:
    record = json.loads(text)
    assert list(record) == list(RECORD["properties"])
    assert len(record["name"]) <= 12
    assert record["kind"] in RECORD["properties"]["kind"]["enum"]
    assert 0 <= record["age"] <= 99
    assert all(isinstance(flag, bool) for tags in record["tags"] for flag in tags)
    assert text == json.dumps(record, ensure_ascii="\\u" in text), "not compact"


def test_json_follows_its_schema_at_any_temperature(backend: LlamaBackend) -> None:
    """Forty seeds at 1.5 give forty valid records, keys in order, compact, ended by themselves."""
    constraint = _schema(backend, RECORD)
    for start in range(0, 40, SLOTS):
        seeds = range(start, start + SLOTS)
        events = _run(
            backend,
            *(
                _request(backend, constraint, sequence_id=i, seed=seed)
                for i, seed in enumerate(seeds)
            ),
        )
        for i in range(SLOTS):
            _check_record(_text(events, i))
            assert _finished(events, i)[1:4] == (FinishReason.STOP, None, None)


FORMS = {
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


@pytest.mark.parametrize("name", FORMS)
def test_every_notation_is_followed(backend: LlamaBackend, name: str) -> None:
    """Twelve seeds each; the text matches as a whole, beyond ASCII too."""
    kind, source, pattern = FORMS[name]
    constraint = _form(backend, kind, source)
    for seed in range(12):
        events = _run(backend, _request(backend, constraint, seed=seed))
        text = _text(events)
        if name == "choices":
            assert text in json.loads(source)
        else:
            assert re.fullmatch(pattern or source, text), text
        assert _finished(events).reason is FinishReason.STOP


def test_tokens_run_out_inside_a_form(backend: LlamaBackend) -> None:
    """Finish reason length, never more than max_tokens, whether tokens were sampled or forced."""
    constraint = _schema(backend, RECORD)
    whole = _tokens(_run(backend, _request(backend, constraint)))
    for limit in range(len(whole)):
        events = _run(backend, _request(backend, constraint, max_tokens=limit))

        assert _tokens(events) == whole[:limit]
        assert _finished(events).reason is FinishReason.LENGTH


@pytest.mark.parametrize("stop", ['"name": ', '", "kind'])
def test_a_stop_text_ends_a_form(backend: LlamaBackend, stop: str) -> None:
    """Also inside of what was forced: what follows it in the same run is not sent."""
    request = _request(backend, _schema(backend, RECORD))
    whole = _text(_run(backend, request))
    events = _run(backend, replace(request, stop=(stop,)))

    assert _text(events) == whole.partition(stop)[0]
    assert _finished(events)[1:3] == (FinishReason.STOP, stop)


def test_free_rows_do_not_notice_constrained_company(backend: LlamaBackend) -> None:
    """Two free sequences say, and weigh, bit for bit what they do without constrained ones."""
    free = [
        _request(
            backend, None, sequence_id=i, seed=i, max_tokens=40, top_logprobs=3, ignore_eos=True
        )
        for i in (0, 2)
    ]
    bound = [
        _request(backend, _schema(backend, RECORD), sequence_id=1, seed=5),
        _request(
            backend, _form(backend, OutputFormatKind.REGEX, "[a-f]{60}"), sequence_id=3, seed=6
        ),
    ]
    company = [
        _request(backend, None, sequence_id=i, seed=i, max_tokens=40, ignore_eos=True)
        for i in (1, 3)
    ]
    mixed = _run(backend, free[0], bound[0], free[1], bound[1])
    alone = _run(backend, free[0], company[0], free[1], company[1])

    for i in (0, 2):
        assert [(d.tokens, d.logprobs) for d in _deltas(mixed, i)] == [
            (d.tokens, d.logprobs) for d in _deltas(alone, i)
        ]
    _check_record(_text(mixed, 1))


RESUMABLE = {
    "wild": WILD,
    "usual": Sampling(),
    "penalties": Sampling(temperature=1.2, repetition_penalty=1.3, dry=Dry(multiplier=2.0)),
}


@pytest.mark.parametrize("name", RESUMABLE)
def test_resume_continues_a_form_token_for_token(backend: LlamaBackend, name: str) -> None:
    """Cut anywhere, also inside a forced run, and with nothing left but the end."""
    request = _request(backend, _schema(backend, RECORD), sampling=RESUMABLE[name], seed=3)
    whole = _tokens(_run(backend, request))
    for cut in range(len(whole) + 1):
        events = _run(backend, replace(request, resumed=array("i", whole[:cut])))

        assert _tokens(events) == whole[cut:]
        assert _finished(events)[1:5] == (FinishReason.STOP, None, None, len(whole))


def test_resumed_tokens_must_follow_the_form(backend: LlamaBackend) -> None:
    """What another request produced is refused, and only that sequence ends."""
    constraint = _form(backend, OutputFormatKind.REGEX, "[0-9]{5}")
    letters = backend.vocabulary.tokenize("abc", add_special=False, parse_special=False)
    events = _run(
        backend,
        _request(backend, constraint, resumed=array("i", letters)),
        _request(backend, constraint, sequence_id=1),
    )

    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.sequence_id == 0
    assert isinstance(failed.error, GrammarInvalid)
    assert re.fullmatch("[0-9]{5}", _text(events, 1))


def test_a_seed_repeats_and_choices_differ(backend: LlamaBackend) -> None:
    """Warm templates and cold ones give the same tokens; each of `n` choices draws its own."""
    constraint = _schema(backend, RECORD)
    first = _run(
        backend, *(_request(backend, constraint, sequence_id=i, choice=i) for i in range(SLOTS))
    )
    for i in range(SLOTS):
        again = _run(backend, _request(backend, constraint, choice=i))
        assert _tokens(again) == _tokens(first, i)
    assert len({_text(first, i) for i in range(SLOTS)}) == SLOTS


def test_log_probabilities_are_the_models_own(backend: LlamaBackend) -> None:
    """One for each token, forced ones too: finite, at most zero, before any mask."""
    request = _request(backend, _schema(backend, RECORD), top_logprobs=2)
    deltas = _deltas(_run(backend, request))

    _check_record("".join(delta.text for delta in deltas))
    chosen = [entry for delta in deltas for entry in delta.logprobs]
    assert [entry.chosen.token for entry in chosen] == [t for d in deltas for t in d.tokens]
    assert all(-100 < entry.chosen.logprob <= 0 for entry in chosen)
    assert any(entry.top[0].logprob > entry.chosen.logprob for entry in chosen)


def test_forced_tokens_need_no_step_of_their_own(backend: LlamaBackend) -> None:
    """A record takes fewer decode calls than half its tokens."""
    engine = Engine(
        "demo", backend, layout=BatchLayout({}, SLOTS), chunk_cap=64, clock=time.monotonic
    )
    schema = {**RECORD, "properties": {**RECORD["properties"], "name": {"const": "Mira the fox"}}}
    engine.submit(_request(backend, _schema(backend, schema), reuse=True))
    tokens = 0
    while engine.has_work:
        tokens += sum(len(event.tokens) for event in engine.step() if isinstance(event, Delta))
        engine.check_integrity()

    assert engine.num_steps < tokens / 2


def test_a_long_forced_run_is_computed_in_rows_of_32(backend: LlamaBackend) -> None:
    """Found once, sampled in between without a choice; resumable anywhere."""
    text = " ".join(f"word{n}" for n in range(60))
    request = _request(backend, _schema(backend, {"const": text}), max_tokens=400)
    engine = Engine(
        "demo", backend, layout=BatchLayout({}, SLOTS), chunk_cap=64, clock=time.monotonic
    )
    engine.submit(request)
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
    tokens = _tokens(events)

    assert _text(events) == json.dumps(text)
    assert len(tokens) > 120
    assert engine.num_steps <= len(tokens) / 32 + 2
    for cut in range(20, len(tokens), 17):
        rest = _run(backend, replace(request, resumed=array("i", tokens[:cut])))
        assert _tokens(rest) == tokens[cut:]


SAMPLERS = {
    "greedy": Sampling(temperature=0.0),
    "usual": Sampling(),
    "mirostat": Sampling(mirostat=Mirostat(2)),
    "adaptive": Sampling(adaptive=Adaptive(0.3)),
    "typical": Sampling(typical_p=0.5, xtc_probability=0.5, xtc_threshold=0.05),
    "a bias against it": Sampling(logit_bias=((123, -100.0),), temperature=1.0),
    "other tokens only": Sampling(allowed_token_ids=(5, 6, 7)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_stays_inside_the_form(backend: LlamaBackend, name: str) -> None:
    """Masks come before the filters; a form wins over settings that leave it nothing."""
    request = _request(
        backend, _schema(backend, RECORD), sampling=SAMPLERS[name], min_tokens=190, ignore_eos=True
    )
    events = _run(backend, request)

    if _finished(events).reason is FinishReason.STOP:
        _check_record(_text(events))
    assert _text(events).startswith('{"name": "')


def test_an_open_form_ends_where_the_model_ends_it(backend: LlamaBackend) -> None:
    """End tokens are allowed where the text is complete, and nowhere else."""
    constraint = _form(backend, OutputFormatKind.REGEX, "[a-z ]{3,}")
    ends = set()
    for seed in range(10):
        events = _run(backend, _request(backend, constraint, seed=seed, max_tokens=60))
        assert re.fullmatch("[a-z ]{3,}", _text(events))
        ends.add(_finished(events).stop_token)
    assert ends & backend.vocabulary.end_tokens

    events = _run(backend, _request(backend, constraint, max_tokens=60, ignore_eos=True))
    assert _finished(events).reason is FinishReason.LENGTH


def test_a_form_without_text_is_over_at_once(backend: LlamaBackend) -> None:
    """Nothing to say: no token, finish reason stop."""
    events = _run(backend, _request(backend, _form(backend, OutputFormatKind.LARK, 'start: ""')))

    assert _text(events) == ""
    assert _finished(events).reason is FinishReason.STOP


def _tools(**changes: Any) -> ToolCallSpec:
    weather: dict[str, Any] = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
    }
    tools = (
        CallableTool("weather", json.dumps(weather | {"required": ["city"]}), False, "tools[0]"),
        CallableTool("now", "", False, "tools[1]"),
    )
    ways = TOOL_CALL_SYNTAXES[ToolCallFormat.HERMES]
    return replace(ToolCallSpec(ways, tools, required=True, several=True), **changes)


CALL = (
    r'<tool_call>\n\{"name": ("weather", "arguments": \{"city": "[^\n]*"\}'
    r'|"now", "arguments": \{\})\}\n</tool_call>'
)


@pytest.mark.parametrize("several", [True, False])
def test_required_calls_are_nothing_but_calls(backend: LlamaBackend, several: bool) -> None:
    """One or more of the offered tools, with arguments by their schemas."""
    constraint = _compile(backend, OutputSpec(None, _tools(several=several), None))
    texts = [
        _text(_run(backend, _request(backend, constraint, seed=seed, max_tokens=150)))
        for seed in range(8)
    ]

    pattern = rf"{CALL}(\n{CALL})*" if several else CALL
    assert [text for text in texts if not re.fullmatch(pattern, text) and len(text) < 300] == []
    assert {"weather" in text for text in texts} == {True, False}


def test_markers_may_be_control_tokens(backend: LlamaBackend) -> None:
    """They come as the very tokens, which no text could be."""
    vocabulary = backend.vocabulary
    marker = vocabulary.control_tokens["<|im_start|>"]
    way = TOOL_CALL_SYNTAXES[ToolCallFormat.HERMES][0]
    marked = replace(way, head=way.head.replace("<tool_call>", "<|im_start|>"))
    constraint = _compile(backend, OutputSpec(None, _tools(ways=(marked,), several=False), None))
    events = _run(backend, _request(backend, constraint, special_tokens=True))

    assert _tokens(events)[0] == marker
    assert re.fullmatch(CALL.replace("<tool_call>", r"<\|im_start\|>", 1), _text(events))


def test_a_form_leaves_room_for_optional_calls(backend: LlamaBackend) -> None:
    """Either the record or calls, never both."""
    form = OutputFormat(OutputFormatKind.REGEX, "[0-9]{3}", "constraint")
    constraint = _compile(backend, OutputSpec(form, _tools(required=False, several=False), None))
    for seed in range(6):
        text = _text(_run(backend, _request(backend, constraint, seed=seed)))
        assert re.fullmatch(rf"[0-9]{{3}}|{CALL}", text), text


def test_the_form_begins_behind_an_open_thought(backend: LlamaBackend) -> None:
    """Thinking is free; once it has ended only the form may follow."""
    form = OutputFormat(OutputFormatKind.REGEX, "[0-9]{3}", "constraint")
    constraint = _compile(
        backend, OutputSpec(form, None, Reasoning("<think>", "</think>", is_open=True))
    )
    thought = backend.vocabulary.tokenize(
        "Well. {", add_special=False, parse_special=False
    ) + backend.vocabulary.tokenize("</think>", add_special=False, parse_special=True)
    events = _run(backend, _request(backend, constraint, resumed=array("i", thought)))

    assert re.fullmatch(r"\s{0,4}[0-9]{3}", _text(events)), _text(events)


def test_a_thought_may_be_left_out(backend: LlamaBackend) -> None:
    """A template that lets the model begin its thought: both ways end in the form."""
    form = OutputFormat(OutputFormatKind.REGEX, "[0-9]{3}", "constraint")
    constraint = _compile(
        backend, OutputSpec(form, None, Reasoning("<think>", "</think>", is_open=False))
    )
    sampling = Sampling(temperature=0.0)
    text = _text(_run(backend, _request(backend, constraint, sampling=sampling)))

    assert re.fullmatch(r"(<think>.*</think>\s{0,4})?[0-9]{3}", text, re.DOTALL), text
    thinking = backend.vocabulary.tokenize("<think>", add_special=False, parse_special=True)
    request = _request(backend, constraint, resumed=array("i", thinking), max_tokens=20)
    assert not re.fullmatch("[0-9]{3}", _text(_run(backend, request)))


def test_a_grammar_that_grows_too_large_ends_its_own_sequence(backend: LlamaBackend) -> None:
    """A step over its limits is an error of that request alone."""
    monster = _form(backend, OutputFormatKind.REGEX, "([a-z ]*[a-m][a-z ]{120}){4}")
    events = _run(
        backend,
        _request(backend, monster, max_tokens=450, ignore_eos=True),
        _request(backend, _form(backend, OutputFormatKind.REGEX, "[0-9]{9}"), sequence_id=1),
    )

    failed = [event for event in events if isinstance(event, Failed)]
    assert [type(event.error) for event in failed] == [GrammarInvalid]
    assert re.fullmatch("[0-9]{9}", _text(events, 1))
