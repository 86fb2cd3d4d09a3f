"""Limits on the structure of bodies: they cost little before they are refused."""

import json
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.anthropic.message_request import parse_message
from dialects.llama_server.tokens import parse_detokenize
from dialects.ollama.requests import parse_chat as parse_ollama_chat
from dialects.openai.chat.chat_request import parse_chat
from dialects.openai.chat.completion_request import parse_completion
from dialects.openai.chat.embeddings import parse_embedding
from dialects.openai.responses.requests import parse_response
from dialects.shared import json_body
from dialects.shared.json_body import (
    MAX_CONTAINERS,
    MAX_MEMBERS_OF_TEXT,
    MAX_STRINGS,
    MAX_VALUES,
    StructureCount,
    is_small,
    parse_array,
    parse_object,
)
from dialects.shared.parameters import MAX_ITEMS, MAX_MEMBERS
from svc_kit.errors import DomainError, InvalidType, TooLong, UnknownField

MESSAGE = {"role": "user", "content": "x"}
CHAT: dict[str, Any] = {"model": "m", "messages": [MESSAGE]}
MANY = 100_000
MEMBERS = dict.fromkeys(map(str, range(MANY)), 1)
VALUES = st.recursive(
    st.integers() | st.text('a"\\,[{', max_size=6) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text('a"\\]', max_size=3), inner, max_size=4)
    ),
    max_leaves=30,
)


def too_long(field: str, limit: int = MAX_ITEMS) -> TooLong:
    """The error of a list with MANY items."""
    return TooLong(field=field, length=MANY, limit=limit)


def brackets(value: Any) -> str:
    if not isinstance(value, dict | list):
        return ""
    children = value.values() if isinstance(value, dict) else value
    return f"[{''.join(map(brackets, children))}]"


def members(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    children = value.values() if isinstance(value, dict) else value
    return len(value) * isinstance(value, dict) + sum(map(members, children))


def commas(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    children = [*(value.values() if isinstance(value, dict) else value)]
    return max(len(children) - 1, 0) + sum(map(commas, children))


@given(VALUES, st.lists(st.integers(1, 9), min_size=1))
def test_structure_is_counted_outside_of_strings_in_pieces_of_any_size(
    value: Any, sizes: list[int]
) -> None:
    """Escaped quotes and brackets in strings, cut anywhere, do not change the count."""
    raw, structure = json.dumps(value).encode(), StructureCount()
    while raw:
        for size in sizes:
            structure._count(raw[:size])
            raw = raw[size:]

    assert structure._brackets.decode() == brackets(value)
    assert structure._num_values == commas(value)
    assert structure._num_members == members(value)


@pytest.mark.parametrize(
    ("raw", "limit", "unit"),
    [
        (orjson.dumps({"messages": [MESSAGE] * 1_000_000}), MAX_CONTAINERS, "arrays and objects"),
        (orjson.dumps([1] * (MAX_VALUES + 1)), MAX_VALUES, "values"),
        (orjson.dumps(dict.fromkeys(map(str, range(500_000)))), MAX_MEMBERS_OF_TEXT, "members"),
        (orjson.dumps(["x"] * (MAX_STRINGS + 2**15)), MAX_STRINGS, "strings"),
        (b"[" + b"[]," * MAX_CONTAINERS + b"[]]", MAX_CONTAINERS, "arrays and objects"),
    ],
    ids=["messages", "tokens", "members", "texts", "empty arrays"],
)
def test_a_text_with_too_many_values_is_not_parsed(raw: bytes, limit: int, unit: str) -> None:
    """The error names the limit."""
    with pytest.raises(TooLong) as refusal:
        parse_object(raw)

    assert (refusal.value.field, refusal.value.limit, refusal.value.unit) == ("body", limit, unit)


def test_what_real_clients_send_is_accepted() -> None:
    """The longest list of tokens, and a long history of an agent with calls of tools."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = [MESSAGE, {"role": "assistant", "content": None, "tool_calls": [call, call]}]
    answers = [{"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "x"}]}]
    fields = parse_object(orjson.dumps({**CHAT, "messages": (turn + answers * 2) * 2_500}))

    assert len(parse_chat(fields).messages) == MAX_ITEMS
    assert len(parse_array(orjson.dumps([12345] * 2**20))) == 2**20


@pytest.mark.parametrize(
    ("parse", "fields", "error"),
    [
        (parse_chat, {**CHAT, "messages": [MESSAGE] * MANY}, too_long("messages")),
        (
            parse_chat,
            {**CHAT, "messages": [{**MESSAGE, "content": [{}] * MANY}]},
            too_long("messages[0].content"),
        ),
        (parse_chat, {**CHAT, "tools": [{}] * MANY}, too_long("tools", 128)),
        (parse_chat, {**CHAT, "stop": ["x"] * MANY}, too_long("stop", 16)),
        (parse_chat, {**CHAT, "stop": [1] * MANY}, too_long("stop", 16)),
        (parse_chat, {**CHAT, "logit_bias": MEMBERS}, too_long("logit_bias", 1024)),
        (parse_chat, CHAT | MEMBERS, UnknownField(field="0")),
        (
            parse_chat,
            {**CHAT, "messages": [MESSAGE | MEMBERS]},
            TooLong(field="messages[0]", length=MANY + 2, limit=MAX_MEMBERS, unit="members"),
        ),
        (
            parse_completion,
            {"model": "m", "prompt": [1, *["x"] * MANY]},
            InvalidType(field="prompt[1]", expected="an integer"),
        ),
        (parse_embedding, {"model": "m", "input": ["x"] * MANY}, too_long("input", 2048)),
        (parse_response, {"model": "m", "input": [MESSAGE] * MANY}, too_long("input")),
        (
            parse_response,
            {"model": "m", "input": "x", "tools": [{}] * MANY},
            too_long("tools", 128),
        ),
        (parse_response, {"model": "m", "input": "x", "metadata": MEMBERS}, too_long("metadata")),
        (
            parse_message,
            {**CHAT, "max_tokens": 1, "messages": [MESSAGE] * MANY},
            too_long("messages"),
        ),
        (parse_ollama_chat, {**CHAT, "messages": [MESSAGE] * MANY}, too_long("messages")),
        (
            parse_detokenize,
            {"tokens": ["x"] * MANY},
            InvalidType(field="tokens[0]", expected="an integer"),
        ),
    ],
)
def test_long_lists_are_refused_in_less_time_than_it_takes_to_parse_them(
    parse: Callable[[Any], object], fields: dict[str, Any], error: DomainError
) -> None:
    """The error names the field and its limit, and no object is made of the items."""
    raw = orjson.dumps(fields)
    parsing, refusing = [], []
    for _ in range(3):
        started = time.process_time()
        body = orjson.loads(raw)
        parsing.append(time.process_time() - started)
        started = time.process_time()
        with pytest.raises(type(error)) as refusal:
            parse(body)
        refusing.append(time.process_time() - started)

    assert refusal.value == error
    assert min(refusing) < max(2 * min(parsing), 0.02)


def test_a_body_is_small_only_if_it_has_few_bytes_and_few_objects() -> None:
    """Others are converted in a thread."""
    assert is_small(orjson.dumps(CHAT))
    assert not is_small(orjson.dumps([{}] * 1000))
    assert not is_small(b" " * 100_000)


def test_the_depth_of_a_long_text_is_limited() -> None:
    """It is found without a walk over the values."""
    raw = b"[" + b"[]," * 90_000 + b"[" * json_body.MAX_DEPTH + b"]" * json_body.MAX_DEPTH + b"]"

    with pytest.raises(DomainError, match="nested deeper"):
        parse_array(raw)
