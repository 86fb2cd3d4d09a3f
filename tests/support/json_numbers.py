"""Texts of JSON numbers, also of such that no float, integer or decimal holds."""

from hypothesis import strategies as st

HARD_NUMBERS = (
    "1e-99999999999999999999", "0e99999999999999999999", "1e99999999999999999999", "1e999999",
    "-1E-999999", "1e400", "1e-400", "-0.0000000000000000000", "18446744073709551616",
    "-9223372036854775809", "9007199254740993", "12345678901234567", "1.00000000000000000001",
    "0.12345678901234567890", "1" + "0" * 5000, "1." + "0" * 5000 + "1",
)  # fmt: skip
"""Also those of 16 and more digits, which are read in another way."""
_DIGITS = st.text("0123456789", min_size=1, max_size=24)


def number_texts() -> st.SearchStrategy[str]:
    """Any number with a fraction, an exponent, or both."""
    whole = _DIGITS.map(lambda digits: digits.lstrip("0") or "0")
    begins = st.builds(str.__add__, st.sampled_from(("", "-")), whole)
    fractions = _DIGITS.map(".{}".format)
    exponents = st.builds(str.__add__, st.sampled_from(("e", "E+", "e-")), _DIGITS)
    ends = st.one_of(fractions, exponents, st.builds(str.__add__, fractions, exponents))
    hard = [each for each in HARD_NUMBERS if "e" in each.lower() or "." in each]
    return st.one_of(st.builds(str.__add__, begins, ends), st.sampled_from(hard))
