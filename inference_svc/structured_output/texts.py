"""Terms of Lark that values match which are written without JSON's quotes."""

import re
from collections.abc import Iterable
from typing import Any

from inference_svc.structured_output.free_text import ANYTHING, escape
from inference_svc.structured_output.numbers import (
    ANY_NUMBER,
    WHOLE_NUMBER,
    number_terms,
    write_json,
)
from inference_svc.structured_output.patterns import left_anchor, whole_pattern
from inference_svc.structured_output.rule_set import write_text
from inference_svc.structured_output.schemas import Alternative, Report

_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
_ZONE = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_PERIOD = r"([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
_CLOCK = r"T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
_GROUP = "[0-9a-fA-F]{1,4}"
_SHORTENED = "|".join(
    rf"({_GROUP}(:{_GROUP}){{{left - 1}}})?::({_GROUP}(:{_GROUP}){{0,{6 - left}}})?"
    for left in range(1, 7)
)
FORMATS = {
    "date": _DATE,
    "time": f"{_TIME}{_ZONE}",
    "date-time": f"{_DATE}T{_TIME}{_ZONE}",
    "duration": f"P({_PERIOD}({_CLOCK})?|{_CLOCK}|[0-9]+W)",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_LABEL}(\.{_LABEL})*",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": f"({_GROUP}:){{7}}{_GROUP}|{_SHORTENED}",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:\/?#@!$&'()*+,;=-]+",
}
"""The formats that are enforced, those of llguidance; others only describe."""
_SCALARS = {
    "number": ANY_NUMBER,
    "integer": WHOLE_NUMBER,
    "boolean": "true|false|True|False",
    "null": "null|None",
}
"""The texts that are read as values of a type where strings have no quotes."""
_WORDS = (("true", "True"), ("false", "False"), ("null", "None"))


def string_terms(schema: dict[str, Any], report: Report) -> list[str]:
    """The limits of a string as terms that it matches all of."""
    terms = []
    least, most = schema.get("minLength"), schema.get("maxLength")
    if least is not None or most is not None:
        terms.append(f"/(?s:.){{{least or 0},{'' if most is None else most}}}/")
    for each in (schema, *schema.get("allOf", ())):
        if each.get("format") in FORMATS:
            terms.append(f"/{FORMATS[each['format']]}/")
        if "pattern" in each:
            whole = whole_pattern(each["pattern"])
            if anchor := left_anchor(whole):
                report(f"'{anchor}' in this place of the regex /{each['pattern']}/")
            terms.append(f"/{_slashes(whole)}/")
    return terms


def _slashes(pattern: str) -> str:
    return re.sub(r"(\\.)|/", lambda match: match[1] or r"\/", pattern)


def string_option_terms(option: Alternative, report: Report) -> list[str]:
    """The terms that a string matches all of, among them its values."""
    values = option.values
    listed = [] if values is None else [f"/{'|'.join(map(escape, values))}/"]
    return [*listed, *string_terms(option.schema, report)]


def number_option_terms(option: Alternative, report: Report) -> list[str]:
    """The terms that a number matches all of."""
    terms = number_terms(option.schema, whole=option.kind == "integer")
    if terms is None:
        report("'multipleOf' here")
    return terms or [f"/{_SCALARS[option.kind]}/"]


def scalar_terms(
    strings: list[Alternative], scalars: list[Alternative], report: Report
) -> list[str]:
    """The terms of a text that is one of some strings, or a value of other types, for which it is
    taken if it looks like one; none if it is any text."""
    limits = [string_option_terms(option, report) for option in strings]
    texts = [(option.kind, _scalar_limits(option, report)) for option in scalars]
    is_free = all(text == [f"/{_SCALARS[kind]}/"] for kind, text in texts)
    if [] in limits and is_free:
        return []
    any_string = " | ".join(f"({' & '.join(each or [ANYTHING])})" for each in limits)
    if not scalars:
        return [f"({any_string})"]
    alike = "|".join(_SCALARS[option.kind] for option in scalars)
    written = " | ".join(f"({' & '.join(each)})" for _, each in texts)
    return [rf"((({any_string}) & ~/\s*({alike})\s*/) | {written})"]


def _scalar_limits(option: Alternative, report: Report) -> list[str]:
    if option.values is not None:
        words = [word for each in map(write_json, option.values) for word in _spellings(each)]
        return [f"/{'|'.join(map(escape, words))}/"]
    if option.kind in ("boolean", "null"):
        return [f"/{_SCALARS[option.kind]}/"]
    return number_option_terms(option, report)


def _spellings(text: str) -> tuple[str, ...]:
    return next((words for words in _WORDS if text in words), (text,))


def write_literal(value: Any) -> str:
    """A JSON value in the terminals of arrays and objects, beside which it may be: of two of which
    one begins with the other, the shorter one would not be found."""
    if isinstance(value, list):
        return " ".join(('"["', _joined(map(write_literal, value)), '"]"'))
    if isinstance(value, dict):
        members = (
            f"{write_text(f'{write_json(k)}: ')} {write_literal(v)}" for k, v in value.items()
        )
        return " ".join(('"{"', _joined(members), '"}"'))
    return write_text(write_json(value))


def _joined(texts: Iterable[str]) -> str:
    return ' ", " '.join(texts)
