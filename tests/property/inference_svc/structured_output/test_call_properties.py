"""Calls that the grammars of all families allow are read by the families' parsers, and their
arguments match the schemas of their tools."""

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.structured_output.compile_job import byte_tokenizer, compile_grammar
from inference_svc.structured_output.matcher import build_matcher
from inference_svc.structured_output.spec import SPACE, CallableTool, OutputSpec, ToolCallSpec
from tests.support.examples import examples
from tests.support.turns import Golden, Parsed

MAX_TOKENS = 20_000
SIZE, END, FIRST_CONTROL = 512, 511, 300
ENFORCED = [name for name, family in FAMILIES.items() if family.syntaxes]
KEYS = ("city", "a", "b_1", "when", "Z", "k", "key_2", "zz")
COLOR = {"$ref": "#/$defs/color"}

_leaves = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string"},
        {"type": "string", "minLength": 1, "maxLength": 3},
        {"type": "string", "pattern": "^a/[b-d]{2}$"},
        {"type": "string", "format": "date"},
        {"type": "integer", "minimum": -3, "maximum": 120},
        {"type": "number"},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"enum": ["red", "dark red", "é<"]},
        {"const": 7},
        COLOR,
    ]
)
_values = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
        st.builds(lambda items: {"type": "array", "items": items, "minItems": 1}, inner),
        st.dictionaries(st.sampled_from(KEYS[5:]), inner, max_size=2).map(
            lambda members: _object(members, list(members)[:1])
        ),
    ),
    max_leaves=3,
)


def _object(members: dict[str, Any], needed: list[str], **more: Any) -> dict[str, Any]:
    closed = {"additionalProperties": False}
    return {"type": "object", "properties": members, "required": needed, **closed, **more}


_schemas = st.dictionaries(st.sampled_from(KEYS[:5]), _values, max_size=4).flatmap(
    lambda members: st.builds(
        lambda needed: json.dumps(
            _object(members, sorted(needed), **{"$defs": {"color": {"enum": ["red", "blue"]}}})
        ),
        st.sets(st.sampled_from(sorted(members))) if members else st.just(set()),
    )
)


class Walk:
    """Random text of a grammar. It often tries the texts that end something, so that it ends."""

    def __init__(self, call_format: ToolCallFormat, control: dict[str, int], seed: int) -> None:
        self._family = FAMILIES[call_format]
        self._control = control
        self._texts = {token: text for text, token in control.items()}
        self._random = random.Random(seed)

    def text(self, grammar: str) -> str:
        """A complete output."""
        matcher = build_matcher(byte_tokenizer(SIZE, self._control, [END]), grammar)
        tokens: list[int] = []
        while not (matcher.is_accepting() and (matcher.is_stopped() or self._ends(tokens))):
            assert len(tokens) < MAX_TOKENS, "".join(self._decode(tokens))
            chosen = self._next(matcher, len(tokens))
            assert matcher.consume_tokens(chosen)
            tokens += chosen
        return "".join(self._decode(tokens))

    def _ends(self, tokens: list[int]) -> bool:
        return self._random.random() < 0.5 + len(tokens) / 1000

    def _next(self, matcher: LLMatcher, num_tokens: int) -> list[int]:
        forced = matcher.compute_ff_tokens()
        if forced:
            return list(forced)
        if self._random.random() < 0.2 + num_tokens / 500:
            for texts in self._endings():
                ends = [tokens for text in texts if (tokens := list(self._encode(text)))]
                ends = [each for each in ends if matcher.validate_tokens(each) == len(each)]
                if ends and self._random.random() < 0.5:
                    return self._random.choice(ends)
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:END])
        return [int(self._random.choice(allowed))]

    def _endings(self) -> Iterator[set[str]]:
        """Texts that end all calls, then those that end a call or a value."""
        ways = self._family.syntaxes
        yield {way.after.replace(SPACE, "") for way in ways}
        arguments = [way.arguments for way in ways if way.arguments]
        texts = {each.end.replace("{key}", key) for each in arguments for key in KEYS}
        texts |= {text for each in arguments for text in each.barred}
        texts |= {quotes[1] for each in arguments for quotes in each.quotes or ()}
        texts |= {each.item[1] for each in arguments if each.item}
        texts |= {way.tail.replace(SPACE, "") for way in ways}
        texts = {text.replace(SPACE, "") for text in texts}
        yield texts | {f"\n{text}" for text in texts} | set('"}])\n<>') | {'"}', "'"}

    def _encode(self, text: str) -> Iterator[int]:
        while text:
            marker = next((each for each in self._control if text.startswith(each)), "")
            if marker:
                yield self._control[marker]
            else:
                yield from text[0].encode()
            text = text[len(marker) or 1 :]

    def _decode(self, tokens: list[int]) -> Iterator[str]:
        written = bytearray()
        for token in tokens:
            if token < 256:
                written.append(token)
            else:
                yield written.decode() + self._texts.get(token, "")
                written.clear()
        yield written.decode()


@pytest.mark.parametrize("has_control", [False, True], ids=["markers as text", "control tokens"])
@pytest.mark.parametrize("call_format", ENFORCED, ids=lambda each: each.value)
@settings(max_examples=examples(20), deadline=None)
@given(schema=_schemas, seed=st.integers(0, 2**32 - 1))
def test_required_calls_are_read_with_arguments_of_their_schemas(
    call_format: ToolCallFormat, has_control: bool, schema: str, seed: int
) -> None:
    """Any text that the grammar of required calls allows is nothing but calls."""
    family = FAMILIES[call_format]
    markers = [text for text in family.markers if text] if has_control else []
    control = {text: FIRST_CONTROL + number for number, text in enumerate(dict.fromkeys(markers))}
    tools = (CallableTool("find", schema, True, "t"), CallableTool("find_all", "", True, "t"))
    calls = ToolCallSpec(family.syntaxes, tools, required=True, several=True)
    asked = json.loads(json.dumps(asdict(OutputSpec(None, calls, None))))  # as in the sandbox
    vocabulary = {"size": SIZE, "control": control, "ends": [END]}
    compiled = compile_grammar({"asked": asked, "vocabulary": vocabulary})
    text = Walk(call_format, control, seed).text(compiled["grammar"])
    offered = OfferedTools({tool.name: tool.schema for tool in tools})
    parsed = Golden("", TurnFormat(tool_calls=call_format), text, Parsed(), offered).parse([text])

    assert (parsed.content.strip(), parsed.reasoning) == ("", ""), text
    assert parsed.calls, text
    for name, arguments in parsed.calls:
        value = json.loads(arguments)
        if name == "find":
            jsonschema.validate(value, json.loads(schema))
        else:
            assert (name, value) == ("find_all", {}), text
