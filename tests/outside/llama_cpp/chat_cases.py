"""Reads the cases of llama.cpp's `tests/test-chat.cpp`: outputs of models, expected messages.

It interprets the subset of C++ in which the cases are written: constants, messages and tools, loops
over templates, functions of cases, and the calls of the builder, `tst.test(TEXT).tools({…}).run()`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

_TOKEN: Final = re.compile(
    r'\s+|//[^\n]*|/\*.*?\*/|^\s*#(?:\\\n|[^\n])*|R"(?P<tag>\w*#?)\((?P<raw>.*?)\)(?P=tag)"'
    r'|"(?P<text>(?:\\.|[^"\\])*)"|(?P<name>[A-Za-z_]\w*(?:::\w+)*)'
    r"|(?P<number>-?\d[\w.]*)|'(?:\\.|[^'\\])+'|(?P<mark>.)",
    re.DOTALL | re.MULTILINE,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "'": "'", "0": "\0"}
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]+|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ENTRY: Final = "test_template_output_peg_parsers"
_WORDS: Final = {"true": True, "false": False, "nullptr": None}


class Unreadable(Exception):
    """A piece of the source is not in the subset."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


@dataclass
class ReadMessage:
    """A message; `calls` have name, arguments and id, which is empty where any id is right."""

    role: str = "assistant"
    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    tool_call_id: str = ""


@dataclass
class ReadCase:
    """One case; `tools` have name, description and JSON schema, `options` the builder's values."""

    line: int
    template: str
    text: str
    expected: ReadMessage = field(default_factory=ReadMessage)
    messages: list[ReadMessage] = field(default_factory=list)
    tools: list[list[str]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


def read_cases(source: str) -> tuple[list[ReadCase], list[str]]:
    """Return the cases of the source of test-chat.cpp, and what could not be read, with lines."""
    reader = _Reader(_tokens(source))
    return reader.cases, reader.problems


def _tokens(source: str) -> list[_Token]:
    tokens, line = [], 1
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup
        if kind == "tag":
            kind = "raw"
        if kind == "raw":
            tokens.append(_Token("text", match["raw"], line))
        elif kind == "text":
            tokens.append(_Token("text", _ESCAPE.sub(_unescape, match["text"]), line))
        elif kind:
            tokens.append(_Token(kind, match[kind], line))
        line += match[0].count("\n")
    return tokens


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    return _ESCAPES[escape] if len(escape) == 1 else chr(int(escape[1:], 16))


class _Reader:
    def __init__(self, tokens: list[_Token]) -> None:
        self.cases: list[ReadCase] = []
        self.problems: list[str] = []
        self._tokens = tokens
        self._functions: dict[str, tuple[list[str], int, int]] = {}
        scope: dict[str, Any] = {}
        self._run(0, len(tokens), scope)
        self.problems.clear()  # of declarations that no case needs
        self._call(_ENTRY, [False], scope)

    def _run(self, at: int, end: int, scope: dict[str, Any]) -> None:
        """Run the statements in [at, end); a block has a scope of its own."""
        tokens = self._tokens
        while at < end:
            stop = self._statement_end(at, end)
            first = tokens[at].text
            if tokens[stop - 1].text == "}" and tokens[at].kind == "mark":
                self._run(at + 1, stop - 1, dict(scope))
            elif first == "for" and any(token.text == ":" for token in tokens[at:stop]):
                self._run_loop(at, stop, scope)
            elif tokens[stop - 1].text == "}":
                self._define_function(at, stop)
            else:
                self._run_simple(at, stop - 1, scope)
            at = stop

    def _statement_end(self, at: int, end: int) -> int:
        """The position after a statement: a `;`, or the end of a block that is not a value."""
        depth, is_value, begin = 0, False, at
        while at < end:
            text = self._tokens[at].text if self._tokens[at].kind == "mark" else ""
            is_value = is_value or (depth == 0 and text == "=")
            depth += (text in ("(", "{", "[")) - (text in (")", "}", "]"))
            at += 1
            if depth == 0 and text == ";":
                return at
            ends_value = at < end and self._tokens[at].text == ";"
            if depth == 0 and text == "}" and not is_value and not ends_value:
                return at
        if depth:
            raise Unreadable(f"line {self._tokens[begin].line}: a bracket is not closed")
        return at

    def _run_loop(self, at: int, stop: int, scope: dict[str, Any]) -> None:
        colon = next(i for i in range(at, stop) if self._tokens[i].text == ":")
        values = _Expression(self._tokens, colon + 1, scope)
        try:
            items = values.read()
        except Unreadable as problem:
            self._report(at, stop, problem)
            return
        begin = values.at + 1  # behind the closing parenthesis
        for item in items:
            self._run(begin, stop, {**scope, self._tokens[colon - 1].text: item})

    def _define_function(self, at: int, stop: int) -> None:
        """Remember a function with its parameters; it is run when it is called."""
        tokens = self._tokens
        names = [token.text for token in tokens[at:stop]]
        if "(" not in names or tokens[at].text in ("if", "while", "try"):
            self._report(at, stop, "it is not a function")
            return
        opening = names.index("(")
        closing = names.index(")", opening)
        parameters = [names[i - 1] for i in range(opening, closing + 1) if names[i] in (",", ")")]
        body = at + names.index("{", closing)
        self._functions[names[opening - 1]] = (parameters, body + 1, stop - 1)

    def _run_simple(self, at: int, stop: int, scope: dict[str, Any]) -> None:
        try:
            self._evaluate(at, stop, scope)
        except Unreadable as problem:
            self._report(at, stop, problem)

    def _report(self, at: int, stop: int, problem: object) -> None:
        """Statements without cases may be unreadable."""
        if any(token.text == "test" for token in self._tokens[at:stop]):
            self.problems.append(f"line {self._tokens[at].line}: {problem}")

    def _evaluate(self, at: int, stop: int, scope: dict[str, Any]) -> None:
        tokens = self._tokens
        equals = next((i for i in range(at, stop) if tokens[i].text == "="), None)
        depth_free = [t.text for t in tokens[at : equals or stop]]
        if equals is not None and "(" not in depth_free:
            value = _Expression(tokens, equals + 1, scope).read()
            if depth_free[-2:-1] == ["."]:
                if depth_free[-3] not in scope:
                    raise Unreadable(f"{depth_free[-3]} is unknown")
                setattr(scope[depth_free[-3]], _FIELDS.get(depth_free[-1], depth_free[-1]), value)
            else:
                scope[depth_free[-1]] = value
        elif tokens[at].text in self._functions and tokens[at + 1].text == "(":
            self._call(tokens[at].text, _Expression(tokens, at + 2, scope).items(")"), scope)
        elif isinstance(scope.get(tokens[at].text), _Tester):
            self.cases.append(_build_case(tokens, at, scope))
        elif "{" in depth_free and "(" not in depth_free[: depth_free.index("{")]:
            brace = at + depth_free.index("{")
            value = _Expression(tokens, brace + 1, scope).items("}")
            if depth_free[brace - at - 2] == "common_chat_msg":
                value = ReadMessage(*value[:2])
            scope[tokens[brace - 1].text] = value
        elif depth_free[:1] == ["common_chat_msg"] and stop == at + 2:
            scope[depth_free[1]] = ReadMessage()
        else:
            raise Unreadable("the statement is unknown")

    def _call(self, name: str, values: list[Any], scope: dict[str, Any]) -> None:
        parameters, begin, end = self._functions[name]
        self._run(begin, end, {**scope, **dict(zip(parameters, values, strict=True))})


_FIELDS: Final = {"reasoning_content": "reasoning", "tool_calls": "calls"}


class _Tester(NamedTuple):
    template: str


class _Expression:
    """Evaluates an expression from a position on."""

    def __init__(self, tokens: list[_Token], at: int, scope: Mapping[str, Any]) -> None:
        self._tokens = tokens
        self.at = at
        self._scope = scope

    def read(self) -> Any:
        value = self._value()
        while self._accept("+"):
            value += self._value()
        return value

    def items(self, closer: str) -> list[Any]:
        """Values up to a closing bracket."""
        values = []
        while not self._accept(closer):
            values.append(self.read())
            self._accept(",")
        return values

    def _accept(self, text: str) -> bool:
        token = self._tokens[self.at]
        found = token.kind == "mark" and token.text == text
        self.at += found
        return found

    def _value(self) -> Any:
        token = self._tokens[self.at]
        self.at += 1
        if token.kind == "text":
            more = self._tokens[self.at].kind == "text"
            return token.text + self._value() if more else token.text
        if token.kind == "number":
            return token.text
        if token.text == "{" and token.kind == "mark":
            return self.items("}")
        if token.kind == "name":
            if self._accept("("):
                return _make(token.text, self.items(")"))
            if token.text in _WORDS:
                return _WORDS[token.text]
            if token.text.startswith("COMMON_"):
                return token.text
            if token.text in self._scope:
                return self._scope[token.text]
        raise Unreadable(f"line {token.line}: {token.text!r} is unknown")


def _make(name: str, values: list[Any]) -> Any:
    match name:
        case "peg_tester":
            return _Tester(values[0])
        case "std::string" | "std::move":
            return values[0]
        case "simple_assist_msg":
            content, reasoning, tool, arguments, call_id = (*values, *[""] * 5)[:5]
            calls = [[tool, arguments, call_id]] if tool or call_id else []
            return ReadMessage("assistant", content, reasoning, calls)
        case "message_with_tool_calls":
            return ReadMessage(calls=[[*values, ""]])
        case "message_with_tool_calls_and_reasoning":
            return ReadMessage(reasoning=values[2], calls=[[*values[:2], ""]])
        case "message_with_reasoning_and_tool_call":
            return ReadMessage(reasoning=values[0], calls=[[*values[1:], ""]])
        case "message_with_content_and_tool_call":
            return ReadMessage(content=values[0], calls=[[*values[1:], ""]])
        case "message_with_reasoning_content_and_multiple_tool_calls":
            calls = [[*call, ""] for call in values[2]]
            return ReadMessage("assistant", values[1], values[0], calls)
    raise Unreadable(f"{name} is unknown")


def _build_case(tokens: list[_Token], at: int, scope: Mapping[str, Any]) -> ReadCase:
    case = ReadCase(tokens[at].line, Path(scope[tokens[at].text].template).name, "")
    expression = _Expression(tokens, at + 1, scope)
    for name, values in _builder_calls(tokens, expression):
        value: Any = values[0] if values else True
        match name:
            case "test":
                case.text = value
            case "expect":
                expected = case.expected = ReadMessage(**vars(value))
                expected.calls = [list(call) for call in value.calls]
            case "expect_content":
                case.expected.content = value
            case "expect_reasoning":
                case.expected.reasoning = value
            case "expect_tool_calls":
                case.expected.calls = [[*call[:2], call[2] or ""] for call in value]
            case "messages" | "tools":
                setattr(case, name, value)
            case "run":
                return case
            case _:
                case.options[name] = value
    raise Unreadable(f"line {case.line}: the case is not run")


def _builder_calls(
    tokens: list[_Token], expression: _Expression
) -> Iterator[tuple[str, list[Any]]]:
    while tokens[expression.at].text == ".":
        name = tokens[expression.at + 1].text
        expression.at += 3
        yield name, expression.items(")")
