"""Prevents the injection of control tokens through messages.

Rendered prompts are tokenized with control tokens parsed, since templates contain them; a message
with "<|im_end|>" could end its own turn. So before rendering, control texts in messages are
replaced by placeholders of random digits. Afterwards the prompt is split at the placeholders: the
original texts are tokenized as plain text, the rest with control tokens. Prompts without control
texts are not split, since that changes tokens. Not covered: tokens of type "user defined", which
llama.cpp parses in any text, and control texts that a template itself produces, e.g. by
lower-casing.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

_PLACEHOLDER_DIGITS = 36
_INDEX_DIGITS = 4
_PREFIX_CHARACTERS = 3


class PromptSpan(NamedTuple):
    """A part of a prompt. Control tokens are only parsed in trusted ones. `media` is the number of
    the picture or sound that stands here instead of text."""

    text: str
    trusted: bool
    media: int | None = None


class ControlTexts:
    """The control texts of a model; at most 10,000, so that an index has four digits."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted({text for text in texts if text})[: 10**_INDEX_DIGITS]
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._pattern = _alternatives(self._texts) if self._texts else None

    def protect(self, value: Any) -> tuple[Any, "Placeholders"]:
        """Replace every control text in a value; the placeholders split it again."""
        placeholders = Placeholders(self._texts)
        if self._pattern is None:
            return value, placeholders
        pattern, numbers = self._pattern, self._numbers

        def replace(text: str) -> str:
            return pattern.sub(lambda match: placeholders.write(numbers[match[0]]), text)

        return _map_texts(value, replace), placeholders


class Placeholders:
    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        number = secrets.randbelow(10**_PLACEHOLDER_DIGITS)
        self._secret = f"{number:0{_PLACEHOLDER_DIGITS}}"

    def write(self, number: int) -> str:
        """Return the placeholder of a control text."""
        return f"{self._secret}{number:0{_INDEX_DIGITS}}"

    def split(self, text: str) -> tuple[PromptSpan, ...]:
        """Split a rendered prompt into trusted and untrusted spans."""
        spans = (
            PromptSpan(self._texts[int(piece)] if i % 2 else piece, trusted=i % 2 == 0)
            for i, piece in enumerate(self._split(text))
        )
        return tuple(span for span in spans if span.text)

    def split_media(self, spans: Iterable[PromptSpan]) -> Iterator[PromptSpan]:
        """Split spans at placeholders that stand for pictures and sounds, by number."""
        for span in spans:
            for i, piece in enumerate(self._split(span.text)):
                if i % 2:
                    yield PromptSpan(self._texts[int(piece)], trusted=False, media=int(piece))
                elif piece:
                    yield span._replace(text=piece)

    def _split(self, text: str) -> list[str]:
        """The texts between placeholders, and between them the indexes. A regular expression would
        have to be compiled for each prompt."""
        first, *others = text.split(self._secret)
        pieces = [first]
        for each in others:
            index, rest = each[:_INDEX_DIGITS], each[_INDEX_DIGITS:]
            if len(index) == _INDEX_DIGITS and index.isascii() and index.isdigit():
                pieces += [index, rest]
            else:
                pieces[-1] += self._secret + each
        return pieces


def _alternatives(texts: list[str]) -> re.Pattern[str]:
    """Match any of the texts, the longest first; grouped by prefix for speed."""
    groups = []
    for prefix, members in groupby(sorted(texts), key=lambda text: text[:_PREFIX_CHARACTERS]):
        rests = sorted((member[_PREFIX_CHARACTERS:] for member in members), key=len, reverse=True)
        groups.append((prefix, f"{re.escape(prefix)}(?:{'|'.join(map(re.escape, rests))})"))
    groups.sort(key=lambda group: len(group[0]), reverse=True)
    return re.compile("|".join(pattern for _, pattern in groups))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    return value
