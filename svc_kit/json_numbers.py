"""The numbers of JSON text with all digits that it has."""

from decimal import Decimal

_KEPT_CHARACTERS = 16
"""A double keeps 15 digits for certain, and the point takes one more place."""


def exact_number(text: str) -> float | Decimal:
    """The value of a number with a fraction or an exponent: a `Decimal` if a float would change it.
    Exponents are not expanded. Raises ValueError for one that has too many digits even so.
    """
    value = float(text)
    is_short = len(text) <= _KEPT_CHARACTERS and "e" not in text and "E" not in text
    if is_short or repr(value) == text:
        return value
    try:
        number = Decimal(text)
    except ArithmeticError:
        raise ValueError("a number's exponent has too many digits") from None
    return value if Decimal(repr(value)) == number else number
