"""The requested output of a turn before it is a grammar: plain data that is sent to the sandbox as
JSON.
"""

from dataclasses import dataclass
from enum import StrEnum

from svc_kit.errors import TooLong

MAX_OUTPUT_FORMAT_BYTES = 128 * 1024
MAX_TOOL_SCHEMAS_BYTES = 256 * 1024
MAX_CHOICES = 1024
NUMBER = "\0"
"""A placeholder for a number of the model's choice in a `ToolCallSyntax`."""


class OutputFormatKind(StrEnum):
    """The notations of a form."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    GBNF = "gbnf"
    CHOICES = "choices"


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The form of the whole answer. `field` is what errors call it; choices are a JSON array."""

    kind: OutputFormatKind
    text: str
    field: str


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called. Its arguments follow `schema` (JSON text; empty: no arguments).

    `strict`: a keyword that cannot be enforced refuses the schema; otherwise it is left out.
    """

    name: str
    schema: str
    strict: bool
    field: str


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """A way to write calls: each is `head`, the name, `middle`, the arguments as JSON, `tail`.

    `before` and `after` stand around all of them, `between` two of them.
    """

    head: str
    middle: str
    tail: str = ""
    before: str = ""
    between: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallSpec:
    """Tool calls in one of the ways to write them. `required`: nothing else is an answer.

    `trigger`: where the model is free otherwise, the text with which each of the ways begins; what
    is written from there on is a call. Empty: the output has its form from the beginning. `barred`
    are texts that its reader takes for the beginning of a call, too: none is to be written.
    """

    ways: tuple[ToolCallSyntax, ...]
    tools: tuple[CallableTool, ...]
    required: bool
    several: bool
    trigger: str = ""
    barred: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Free text before the form. `is_open`: the prompt has begun it, so it only has to end;
    otherwise the model may leave it out."""

    begin: str
    end: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Everything that shapes one output: at least a form or calls."""

    form: OutputFormat | None
    calls: ToolCallSpec | None
    thought: Reasoning | None

    def check_sizes(self) -> None:
        """Refuse what is too large to look at. Raises `TooLong` with the limit."""
        if self.form is not None:
            _check_bytes(self.form.field, len(self.form.text.encode()), MAX_OUTPUT_FORMAT_BYTES)
        if self.calls is not None:
            size = sum(len(tool.schema.encode()) for tool in self.calls.tools)
            _check_bytes("tools", size, MAX_TOOL_SCHEMAS_BYTES)


def _check_bytes(field: str, size: int, limit: int) -> None:
    if size > limit:
        raise TooLong(field=field, length=size, limit=limit, unit="bytes")
