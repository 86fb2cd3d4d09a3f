"""Bodies of llama-server's completions."""

import pytest

from dialects.llama_server.completion import (
    COMPLETION_PARAMS,
    continuation_requests,
    parse_continuation,
)
from dialects.openai.errors import openai_name


def test_an_empty_grammar_is_none() -> None:
    """As in llama-server; a schema may be given beside it."""
    schema = {"const": 1234567890123456789}
    body = parse_continuation({"prompt": "a", "grammar": "", "json_schema": schema})
    (request,) = continuation_requests(body)

    assert request.options.constraint.json_schema == '{"const":1234567890123456789}'


@pytest.mark.parametrize(
    ("field", "name"),
    [("constraint.gbnf", "grammar"), ("constraint.json_schema", "json_schema")],
)
def test_errors_name_the_constraint_that_was_given(field: str, name: str) -> None:
    """Not the other one."""
    assert openai_name(field, COMPLETION_PARAMS) == name
