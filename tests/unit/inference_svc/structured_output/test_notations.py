import json

import pytest
from llguidance import LLMatcher

from inference_svc.structured_output.notations import gbnf_choices, single_lark

GRAMMARS = {
    "one in Lark": [{"lark_grammar": 'start: "a@form"'}],
    "one schema": [{"json_schema": {"type": "object"}}],
    "a schema by name": [
        {"lark_grammar": 'start: "@form" @form'},
        {"json_schema": {"const": "}"}, "name": "form"},
    ],
    "Lark by name": [
        {"lark_grammar": "start: /@form/ @form (@tool_1)?"},
        {"lark_grammar": 'start: "}" X\nX: /[}]{2}/', "name": "form"},
        {"json_schema": {"type": "integer"}, "name": "tool_1"},
    ],
}


@pytest.mark.parametrize("grammars", GRAMMARS.values(), ids=GRAMMARS)
def test_a_document_becomes_one_grammar_that_is_valid(grammars: list[dict[str, object]]) -> None:
    lark = single_lark(json.dumps({"grammars": grammars}))
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(lark)) == ""


def test_references_in_strings_stay_as_they_are() -> None:
    lark = single_lark(json.dumps({"grammars": GRAMMARS["a schema by name"]}))
    assert lark == 'start: "@form" part_form\npart_form: %json {"const": "}"}'


def test_choices_become_strings_of_gbnf() -> None:
    assert gbnf_choices(["a", 'b"\\', "é\n"]) == 'root ::= "a" | "b\\"\\\\" | "é\\x0A"'
