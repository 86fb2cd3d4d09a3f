"""Reads the cases of llama.cpp's `tests/test-chat-template.cpp`: templates and expected prompts."""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_TOKEN: Final = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?P<text>(?:\\.|[^"\\])*)"|(?P<word>[a-z]+)(?=[\s,])|(?P<mark>[{},;])',
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


class TemplateCase(NamedTuple):
    """A case in the order of its fields; `expected` is the prompt, where none is given for Jinja.

    `extra` has the roles and texts of further turns.
    """

    name: str
    template: str
    expected: str
    expected_by_jinja: str = ""
    bos: str = ""
    eos: str = ""
    is_supported: bool = True
    extra: tuple[tuple[str, ...], ...] = ()

    @property
    def prompt(self) -> str:
        """The prompt that llama.cpp's Jinja renders."""
        return self.expected_by_jinja or self.expected


def read_template_cases(source: str) -> list[TemplateCase]:
    tokens = _TOKEN.finditer(source, source.index("std::vector<TestCase> test_cases {"))
    next(token for token in tokens if token[0] == "{")
    return [TemplateCase(*fields) for fields in _read_list(tokens)]


def _read_list(tokens: Iterator[re.Match[str]]) -> tuple[Any, ...]:
    """The values up to the end of a braced list; neighbouring texts are one."""
    values: list[Any] = []
    after_comma = True
    for token in tokens:
        if token[0] == "}":
            break
        if token[0] == "{":
            values.append(_read_list(tokens))
        elif token["text"] is not None and not after_comma:
            values[-1] = f"{values[-1]}{_unescape(token['text'])}"
        elif token["text"] is not None:
            values.append(_unescape(token["text"]))
        elif token["word"] in ("true", "false"):
            values.append(token["word"] == "true")
        elif token[0] != ",":
            continue
        after_comma = token[0] == ","
    return tuple(values)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(
        lambda each: (
            _ESCAPES.get(each[1], each[1]) if len(each[1]) == 1 else chr(int(each[1][1:], 16))
        ),
        text,
    )
