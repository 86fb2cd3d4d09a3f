"""One schema in several fields of a body is one constraint."""

from contextlib import suppress

import pytest
from corral.inference.v1.generation_pb2 import Constraint

from dialects.openai.chat.output_format import StructuredOutputs, resolve_constraint
from svc_kit.errors import InvalidField
from tests.support.json_numbers import HARD_NUMBERS


def resolve(first: str, second: str) -> Constraint | None:
    outputs = StructuredOutputs(json=first)
    guided = {"guided_json": Constraint(json_schema=second)}
    return resolve_constraint(None, None, None, outputs, guided)


@pytest.mark.parametrize("number", [*HARD_NUMBERS, "NaN", "[" * 5_000], ids=lambda each: each[:24])
def test_no_number_in_the_text_of_a_schema_is_an_error_of_the_server(number: str) -> None:
    """Texts are compared, whatever they say; those that are no JSON are equal only if the same."""
    text = f'{{"minimum": {number}}}'

    assert resolve(text, text) == Constraint(json_schema=text)
    with suppress(InvalidField):
        assert resolve(text, f" {text}") == Constraint(json_schema=text)


def test_schemas_that_differ_in_the_last_digit_are_two() -> None:
    """Their digits count, also those that a float has not."""
    with pytest.raises(InvalidField):
        resolve('{"minimum": 0.12345678901234567890}', '{"minimum": 0.12345678901234567891}')
