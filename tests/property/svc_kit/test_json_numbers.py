"""Numbers of JSON text keep their digits, whatever they are."""

from decimal import Decimal

import pytest
from hypothesis import given

from svc_kit.json_numbers import exact_number
from tests.support.json_numbers import number_texts


@given(number_texts())
def test_a_number_has_the_value_of_its_text(text: str) -> None:
    """As a float or as a decimal; only an exponent that none of them holds is an error."""
    try:
        number = exact_number(text)
    except ValueError:
        assert len(text.lower().partition("e")[2]) > 18
        return
    expected = Decimal(text)
    if "e" not in text.lower() or isinstance(number, Decimal):
        assert Decimal(str(number)) == expected
    assert float(number) == float(text)


@pytest.mark.parametrize("text", ["1e999999", "-1E+999999999", "1e-999999999", "0.5e99999999999"])
def test_exponents_are_not_expanded(text: str) -> None:
    """A number has as many digits in memory as in its text."""
    number = exact_number(text)

    assert isinstance(number, Decimal)
    assert len(number.as_tuple().digits) <= len(text)
