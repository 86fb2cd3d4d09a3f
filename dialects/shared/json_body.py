"""Parse and write JSON text, with limits on its structure.

The whole text has general limits, which are checked before it is parsed; the lists of each body
have their own, the `max_length` of its model, or MAX_ITEMS (`parameters.py`).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from svc_kit.errors import InvalidJson, TooLong
from svc_kit.json_numbers import exact_number

INVALID_INPUT: Final = "INVALID_JSON"
"""The key of a tool's input whose JSON cannot be parsed; its value is the text. Anthropic's
documents give such an input back to the model in this way."""
MAX_DEPTH = 128
"""Nesting levels of arrays and objects. Deeper values cannot be encoded again for the engine."""
MAX_CONTAINERS: Final = 2**17
"""Arrays and objects of a text. A conversation of 10,000 messages with calls of tools has half."""
MAX_VALUES: Final = 5 * 2**18
"""All values of a text: the longest list of tokens has 2**20."""
MAX_MEMBERS_OF_TEXT: Final = 2**18
"""Members of all objects of a text."""
MAX_STRINGS: Final = 2**19
"""Strings of a text, names of members included."""
_COUNTED_BYTES: Final = 2 * MAX_CONTAINERS
"""Shorter texts have fewer arrays, objects and values than any limit."""
_SLICE_BYTES: Final = 64 * 1024
_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_OTHER_BYTES: Final = bytes(set(range(256)) - set(b"[]{}"))
_SMALL_BYTES: Final = 64 * 1024
_SMALL_CONTAINERS: Final = 500
_DIGITS: Final = bytes.maketrans(b"0123456789.", b"0" * 11)
_LONG: Final = b"0" * 16  # a double has 15 digits for certain, and a point takes one more place
_LONG_NUMBERS: Final = re.compile(r"[-+.0-9eE]{16,}")
_MAX_INTEGER: Final = 2**63


class StructureCount:
    """Counts the arrays, objects and values of JSON text that arrives in pieces."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._uncounted: list[bytes] = []
        self._escape = b""
        self._in_string = 0
        self._brackets = bytearray()
        """All brackets outside of strings; braces are written as brackets."""
        self._num_containers = 0
        self._num_values = 0
        self._num_members = 0
        self._num_quotes = 0

    def add(self, piece: bytes) -> None:
        """Count the next piece. Raises TooLong if the text has too many."""
        self._num_bytes += len(piece)
        self._uncounted.append(piece)
        if self._num_bytes > _COUNTED_BYTES:
            self._count_pieces()

    def check_depth(self) -> None:
        """Raise InvalidJson if arrays and objects of the valid text that was added nest deeper than
        MAX_DEPTH."""
        self._count_pieces()
        level = bytes(self._brackets)
        for _ in range(MAX_DEPTH):
            level = level.replace(b"[]", b"")
            if not level:
                return
        raise InvalidJson(field=None, problem=f"nested deeper than {MAX_DEPTH} levels")

    def _count_pieces(self) -> None:
        for piece in self._uncounted:
            for first in range(0, len(piece), _SLICE_BYTES):
                self._count(piece[first : first + _SLICE_BYTES])
        self._uncounted.clear()

    def _count(self, text: bytes) -> None:
        text = self._escape + text
        num_backslashes = len(text) - len(text.rstrip(b"\\"))
        self._escape = b"\\" * (num_backslashes % 2)  # it belongs to the next character
        parts = _split_strings(text[: len(text) - len(self._escape)])
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= (len(parts) - 1) % 2
        brackets = outside.translate(_AS_BRACKETS, _OTHER_BYTES)
        self._brackets += brackets
        self._num_containers += brackets.count(b"[")
        self._num_values += outside.count(b",")
        self._num_members += outside.count(b":")
        self._num_quotes += len(parts) - 1
        for number, limit, unit in (
            (self._num_containers, MAX_CONTAINERS, "arrays and objects"),
            (self._num_members, MAX_MEMBERS_OF_TEXT, "members"),
            (self._num_quotes // 2, MAX_STRINGS, "strings"),
            (self._num_values + self._num_containers, MAX_VALUES, "values"),
        ):
            if number > limit:
                raise TooLong(field="body", length=number, limit=limit, unit=unit)


def is_small(raw: bytes) -> bool:
    """Whether a text is parsed and converted in a few milliseconds, whatever it says."""
    return len(raw) <= _SMALL_BYTES and raw.count(b"[") + raw.count(b"{") <= _SMALL_CONTAINERS


class LongNumber(float):
    """A number that a float or 64 bits do not hold, with its text, which `json_text` writes."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


def _exact_float(text: str) -> float:
    try:
        value = exact_number(text)
    except ValueError:
        return LongNumber(text)
    return value if isinstance(value, float) else LongNumber(text)


def _exact_integer(text: str) -> float:
    value = int(text)
    return value if -_MAX_INTEGER <= value < 2 * _MAX_INTEGER else LongNumber(text)


_HOOKS: Final[Mapping[type, Callable[[str], float]]] = {int: _exact_integer, float: _exact_float}


def _split_strings(text: bytes) -> list[bytes]:
    """The parts of JSON text outside and inside of strings in turn, without escaped quotes."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')


def _long_kinds(raw: bytes) -> set[type]:
    """Which of `int` and `float` have numbers in valid text that 64 bits or a float do not hold. It
    is fast, and numbers of the other kind can be read without a hook."""
    if _LONG not in raw.translate(_DIGITS):
        return set()
    outside = b" ".join(_split_strings(raw)[::2])
    if _LONG not in outside.translate(_DIGITS):
        return set()
    kinds: set[type] = set()
    for text in _LONG_NUMBERS.findall(outside.decode()):
        kind = int if text.lstrip("-").isdigit() else float
        if kind not in kinds and isinstance(_HOOKS[kind](text), LongNumber):
            kinds.add(kind)
    return kinds


def load_exact(raw: bytes) -> Any:
    """Parse JSON text. Numbers with more digits than a float has are `LongNumber`, unless the text
    is nested far deeper than MAX_DEPTH. Raises `orjson.JSONDecodeError`."""
    return _load(raw)[0]


def answer_value(text: str) -> Any:
    """The value of JSON text in an answer: if parsing it would change a number, it is text on one
    line. Raises `orjson.JSONDecodeError`."""
    value, has_long_number = _load(text.encode())
    return orjson.Fragment(json_bytes(value)) if has_long_number else value


def _load(raw: bytes) -> tuple[Any, bool]:
    """The value, and whether it has a `LongNumber`."""
    value = orjson.loads(raw)
    hooks = {kind: _HOOKS[kind] for kind in _long_kinds(raw)}
    if not hooks:
        return value, False
    try:
        return json.loads(raw, parse_int=hooks.get(int), parse_float=hooks.get(float)), True
    except RecursionError:
        return value, False


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object. An empty body is an empty object, since SDKs send one if they have no
    arguments.

    Raises TooLong for too many values, and InvalidJson, also for NaN, infinities, lone surrogates
    and invalid UTF-8.
    """
    if not raw.strip():
        return {}
    value = _parse(raw)
    if not isinstance(value, dict):
        raise InvalidJson(field=None, problem="the body is not an object")
    return value


def parse_array(raw: bytes) -> list[Any]:
    """Parse a JSON array. Raises as `parse_object` does."""
    value = _parse(raw)
    if not isinstance(value, list):
        raise InvalidJson(field=None, problem="the body is not an array")
    return value


def check_depth(raw: bytes) -> None:
    """Raise InvalidJson if valid text is nested deeper than MAX_DEPTH, or TooLong."""
    structure = StructureCount()
    structure.add(raw)
    structure.check_depth()


def _parse(raw: bytes) -> Any:
    if len(raw) > _COUNTED_BYTES:
        StructureCount().add(raw)
    try:
        value = load_exact(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(field=None, problem=str(error)) from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        check_depth(raw)
    return value


def tool_input(text: str) -> Any:
    """The arguments of a call as an object in an answer; those that are none are the value of
    INVALID_INPUT."""
    try:
        is_object = isinstance(orjson.loads(text or b"{}"), dict)
    except orjson.JSONDecodeError:
        is_object = False
    return answer_value(text or "{}") if is_object else {INVALID_INPUT: text}


def json_text(value: object) -> str:
    """Encode a value as JSON text; None becomes ""."""
    return "" if value is None else json_bytes(value).decode()


def json_bytes(value: object) -> bytes:
    """Encode a value that `load_exact` may have parsed as JSON, with all digits."""
    return orjson.dumps(value, default=_number_text)


def _number_text(value: object) -> orjson.Fragment:
    if isinstance(value, LongNumber):
        return orjson.Fragment(value.text)
    raise TypeError(f"{type(value)} is not JSON")
