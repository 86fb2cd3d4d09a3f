"""Exact numbers of JSON schemas, where llguidance computes with doubles.

`parse_json` keeps every digit; `is_rounded` and `is_narrowed` say which schemas llguidance would
change; `number_terms` writes their numbers as terms of Lark.
"""

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from svc_kit.json_numbers import exact_number

Number = int | float | Decimal
ANY_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
WHOLE_NUMBER = "-?(0|[1-9][0-9]*)"
_PLAIN_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_NOT_READ = frozenset(("const", "enum", "default", "examples"))
_DEFINITIONS = ("$defs", "definitions")
_MAX_DIGITS = 15  # of a fraction that every double keeps
_MAX_EXPONENT = 15
_MAX_MULTIPLE = 65_535  # llguidance multiplies two of them in 32 bits
_MAX_WRITTEN_DIGITS = 400  # of a double: 309 before the point
_DOUBTFUL = re.compile(r"[0-9](?:[.eE]|[0-9]{14})")
_MAX_NESTED = 40  # llguidance parses 250 levels, of which a place takes up to four
_FRACTION = r"(\.[0-9]+)?"


def parse_json(text: str) -> Any:
    """Parse JSON. A number that a float would change is a `Decimal`. Raises `ValueError` and
    `RecursionError`."""
    return json.loads(text, parse_float=_exact_float, parse_constant=_refuse_constant)


def _exact_float(text: str) -> float | Decimal:
    number = exact_number(text)
    if isinstance(number, float):
        return number
    if len(number.as_tuple().digits) + abs(number.adjusted()) > _MAX_WRITTEN_DIGITS:
        raise ValueError(f"a number has more than {_MAX_WRITTEN_DIGITS} digits")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def write_json(value: Any) -> str:
    """Write a value as the grammars of JSON do, with all digits of its numbers."""
    if isinstance(value, Decimal | float):
        return _plain(exact(value))
    if isinstance(value, dict):
        members = (f"{write_json(key)}: {write_json(each)}" for key, each in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write_json, value))}]"
    return json.dumps(value, ensure_ascii=False)


def exact(number: Number) -> Decimal:
    """A number as a decimal: a float has the digits that JSON text had."""
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


def is_number(value: Any) -> bool:
    """Whether a value is a number of JSON."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def is_rounded(schema: Any) -> bool:
    """Whether llguidance would write or compare a number of a schema inexactly."""
    found = _traits_of(schema)
    # It writes 0 for exclusiveMinimum 0 with a maximum of 0.5.
    return "rounded" in found or {"exclusive", "fraction"} <= found


def is_narrowed(schema: Any) -> bool:
    """Whether llguidance would refuse numbers that a schema allows: 0.9 with a maximum of 0.95."""
    return "narrowed" in _traits_of(schema)


def _traits_of(schema: Any) -> set[str]:
    """What its numbers are. Definitions count if there is a reference."""
    found: set[str] = set()
    pending, definitions = [schema], list[Any]()
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            for keyword, each in value.items():
                if keyword in _DEFINITIONS:
                    definitions.append(each)
                else:
                    found.update(_traits(keyword, each))
                    if isinstance(each, dict | list) and keyword not in _NOT_READ:
                        pending.append(each)
        if not pending and "reference" in found:
            pending, definitions = definitions, []
    return found


def is_doubtful(text: str) -> bool:
    """Whether the text of a schema has a number that `is_rounded` or `is_narrowed` need look at; it
    is fast."""
    return '"multipleOf"' in text or _DOUBTFUL.search(text) is not None


def _traits(keyword: str, value: Any) -> Iterable[str]:
    if keyword in ("const", "enum"):
        yield from map(_kind, _numbers(value))
    elif keyword in _BOUNDS and isinstance(value, int | float | Decimal):
        kind = _kind(value)
        yield from (kind, "exclusive" if keyword.startswith("e") else "")
        if kind == "fraction" and keyword.endswith("aximum") == (value > 0):
            yield "narrowed"
    elif keyword == "multipleOf" and is_number(value):
        yield "" if _keeps_multiple(value) else "rounded"
    elif keyword == "$ref":
        yield "reference"


def _numbers(value: Any) -> Iterable[Number]:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending += each.values()
        elif isinstance(each, list):
            pending += each
        elif is_number(each):
            yield each


def _kind(number: Number) -> str:
    if isinstance(number, int):
        return "" if abs(number) < 2**53 else "rounded"
    before, after = _parts(exact(number).copy_abs())
    if len(before + after) > _MAX_DIGITS:
        return "rounded"
    return "fraction" if after else ""


def _keeps_multiple(number: Number) -> bool:
    """Whether llguidance finds the digits of a divisor, which it multiplies by 10 as a double."""
    if isinstance(number, int):
        return 0 < number <= _MAX_MULTIPLE
    value, exponent = float(number), 0
    while value % 1 and exponent <= _MAX_EXPONENT:
        value, exponent = value * 10, exponent + 1
    is_kept = Fraction(exact(number)) == Fraction(int(value), 10**exponent)
    return 0 < value <= _MAX_MULTIPLE and is_kept


def satisfies(value: Number, schema: dict[str, Any]) -> bool:
    """Whether a number keeps the limits of a schema."""
    number = exact(value)
    low, high, low_open, high_open = _range(schema)
    above = low is None or number > low or (number == low and not low_open)
    below = high is None or number < high or (number == high and not high_open)
    divisors = [exact(each["multipleOf"]) for each in _all(schema) if "multipleOf" in each]
    return (
        above
        and below
        and all(each > 0 and not Fraction(number) % Fraction(each) for each in divisors)
    )


def _all(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [schema, *schema.get("allOf", ())]


def _range(schema: dict[str, Any]) -> tuple[Decimal | None, Decimal | None, bool, bool]:
    """The bounds, and whether they are excluded."""
    low, high, above, below = (exact(schema[word]) if word in schema else None for word in _BOUNDS)
    low_open = above is not None and (low is None or above >= low)
    high_open = below is not None and (high is None or below <= high)
    return above if low_open else low, below if high_open else high, low_open, high_open


def number_terms(schema: dict[str, Any], *, whole: bool) -> list[str] | None:
    """Terms of Lark that a number of a schema matches all of. None: the schema has a
    `multipleOf` that is no power of ten or negative, or a bound with too many digits."""
    low, high, low_open, high_open = _range(schema)
    if any(bound is not None and len(_plain(bound)) > _MAX_WRITTEN_DIGITS for bound in (low, high)):
        return None
    terms = []
    if low is not None and low >= 0:
        terms.append(f"/{_at_least(low, low_open)}/")
    elif low is not None:
        terms.append(f"~/-({_at_least(low, not low_open)})/")
    if high is not None and (high < 0 or (high == 0 and high_open)):
        terms.append(f"/-({_at_least(high, high_open)})/")
    elif high is not None:
        terms.append(f"~/{_at_least(high, not high_open)}/")
    for each in _all(schema):
        if "multipleOf" in each:
            divisor = exact(each["multipleOf"])
            before, after = _parts(divisor.copy_abs())
            if divisor < 0 or (before + after).strip("0") != "1":
                return None
            terms.append(f"/{_multiple(-len(after) if after else len(before) - 1)}/")
    kind = WHOLE_NUMBER if whole else _PLAIN_NUMBER if terms else ANY_NUMBER
    return [f"/{kind}/", *terms]


def _multiple(exponent: int) -> str:
    if exponent > 0:
        return rf"-?(0|[1-9][0-9]*0{{{exponent}}})(\.0+)?"
    return rf"-?[0-9]+(\.{f'[0-9]{{1,{-exponent}}}' if exponent else ''}0*)?"


def _plain(number: Decimal) -> str:
    return format(number, "f")


def _parts(number: Decimal) -> tuple[str, str]:
    before, _, after = _plain(number).partition(".")
    return before.lstrip("0") or "0", after.rstrip("0")


def _at_least(number: Decimal, is_open: bool) -> str:
    """The numbers without sign that are at least a number without its sign, or more if it is
    excluded."""
    before, after = _parts(number.copy_abs())
    texts = [rf"[1-9][0-9]{{{len(before)},}}{_FRACTION}"]
    if larger := _larger(before):
        texts.append(larger + _FRACTION)
    if not after and not is_open:
        return "|".join([*texts, before + _FRACTION])
    texts.append(rf"{before}\.{after}[0-9]*{'[1-9][0-9]*' if is_open else ''}")
    if larger := _larger(after, "[0-9]*"):
        texts.append(rf"{before}\.{larger}")
    return "|".join(texts)


def _larger(digits: str, after: str = "") -> str:
    """A pattern of what is as long as some digits and larger, or larger up to some place and then
    `after`; empty if nothing is. Places are nested, so that llguidance has few alternatives at
    each; more than it can nest are halved."""
    if len(digits) < 2:
        return "" if digits in ("", "9") else f"[{int(digits) + 1}-9]{after}"
    size = 1 if len(digits) <= _MAX_NESTED else len(digits) // 2
    begin, end = _larger(digits[:size], after), _larger(digits[size:], after)
    rest = "" if after else f"[0-9]{{{len(digits) - size}}}"
    texts = [begin + rest] if begin else []
    texts += [digits[:size] + end] if end else []
    return f"({'|'.join(texts)})" if texts else ""
