"""Keeps control tokens in messages from being read as such.

Rendered prompts are tokenized with control tokens parsed, since templates write them; a message
with "<|im_end|>" could end its own turn. So control texts in messages are replaced, before
rendering, by placeholders of unguessable digits, at which the prompt is cut afterwards: the
original text is tokenized as plain text, the rest with control tokens. Prompts without such texts
are not cut, since a cut changes tokens. Not covered: tokens of type "user defined", which llama.cpp
parses in any text, and control texts that a template itself produces, for example by lower-casing.
"""

import re
import secrets
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, NamedTuple

_PLACEHOLDER_DIGITS = 36
_INDEX_DIGITS = 4
_PREFIX_CHARACTERS = 3


class PromptSpan(NamedTuple):
    """A piece of a prompt. In a trusted one control tokens are read as such."""

    text: str
    trusted: bool


class ControlTexts:
    """The texts of one model's control tokens."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted({text for text in texts if text})
        if len(self._texts) > 10**_INDEX_DIGITS:
            # A vocabulary of this shape does not exist; without the guard indexes would overlap.
            self._texts = self._texts[: 10**_INDEX_DIGITS]
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._pattern = _any_of(self._texts) if self._texts else None

    def occur_in(self, value: Any) -> bool:
        """Whether any text inside a JSON-like value contains a control text."""
        if self._pattern is None:
            return False
        search = self._pattern.search
        return any(search(text) for text in _texts_of(value))

    def protect(self, value: Any) -> tuple[Any, "Placeholders"]:
        """Return the value with every control text replaced, and the way back."""
        placeholders = Placeholders(self._texts)
        if self._pattern is None:
            return value, placeholders
        pattern, numbers = self._pattern, self._numbers

        def replace(text: str) -> str:
            return pattern.sub(lambda match: placeholders.write(numbers[match[0]]), text)

        return _map_texts(value, replace), placeholders


class Placeholders:
    """The placeholders of one prompt."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._secret = "".join(secrets.choice("0123456789") for _ in range(_PLACEHOLDER_DIGITS))
        self._pattern = re.compile(self._secret + rf"(\d{{{_INDEX_DIGITS}}})")

    def write(self, number: int) -> str:
        """Return the placeholder of a control text."""
        return f"{self._secret}{number:0{_INDEX_DIGITS}}"

    def restore(self, text: str) -> str:
        """Put the control texts back."""
        return self._pattern.sub(lambda match: self._texts[int(match[1])], text)

    def split(self, text: str) -> tuple[PromptSpan, ...]:
        """Cut a rendered prompt into trusted and untrusted spans."""
        pieces = self._pattern.split(text)
        spans = (
            PromptSpan(self._texts[int(piece)] if place % 2 else piece, trusted=place % 2 == 0)
            for place, piece in enumerate(pieces)
        )
        return tuple(span for span in spans if span.text)


def _any_of(texts: list[str]) -> re.Pattern[str]:
    """Match any text, the longest first; grouped by prefix, so that most places cost one look."""
    groups = []
    for prefix, members in groupby(sorted(texts), key=lambda text: text[:_PREFIX_CHARACTERS]):
        rests = sorted((member[_PREFIX_CHARACTERS:] for member in members), key=len, reverse=True)
        groups.append((prefix, f"{re.escape(prefix)}(?:{'|'.join(map(re.escape, rests))})"))
    groups.sort(key=lambda group: len(group[0]), reverse=True)
    return re.compile("|".join(pattern for _, pattern in groups))


def _texts_of(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_of(item)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    return value
