"""The requested output format of a turn, as plain data that is sent to the sandbox as JSON."""

from dataclasses import dataclass
from enum import StrEnum

from inference_svc.validation import check_bytes

MAX_OUTPUT_FORMAT_BYTES = 128 * 1024
MAX_TOOL_SCHEMAS_BYTES = 256 * 1024
MAX_CHOICES = 1024
NUMBER = "\0"
"""A placeholder in a `ToolCallSyntax` for a number that the model chooses."""


class OutputFormatKind(StrEnum):
    """The notation of an output format."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    GBNF = "gbnf"
    CHOICES = "choices"


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The format of the content. `field` names it in errors; the text of choices is a JSON
    array."""

    kind: OutputFormatKind
    text: str
    field: str


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called. Its arguments match `schema` (JSON text; empty: no arguments). An
    unsupported keyword is an error if `strict`, and ignored otherwise."""

    name: str
    schema: str
    strict: bool
    field: str


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """A syntax of tool calls.

    Each call is `head`, the name, `middle`, the arguments as JSON, `tail`. `before` and `after`
    enclose all calls, and `between` separates them.
    """

    head: str
    middle: str
    tail: str = ""
    before: str = ""
    between: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallSpec:
    """Tool calls in one of several syntaxes (`ways`).

    With `required`, the output must be calls; `several` allows more than one. `trigger` is the
    common beginning of all syntaxes: the output is free text until the trigger, then a call. If it
    is empty, the output is constrained from the start. `barred` texts must not be generated, since
    the parser would mistake them for the start of a call.
    """

    ways: tuple[ToolCallSyntax, ...]
    tools: tuple[CallableTool, ...]
    required: bool
    several: bool
    trigger: str = ""
    barred: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning before the constrained output. `is_open`: the prompt has opened it; otherwise it is
    optional."""

    begin: str
    end: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The constraints of one output: at least a format or calls."""

    form: OutputFormat | None
    calls: ToolCallSpec | None
    thought: Reasoning | None

    def check_sizes(self) -> None:
        """Raise `TooLong` if the format or the tools exceed their size limits."""
        if self.form is not None:
            check_bytes(self.form.field, self.form.text, MAX_OUTPUT_FORMAT_BYTES)
        if self.calls is not None:
            schemas = "".join(tool.schema for tool in self.calls.tools)
            check_bytes("tools", schemas, MAX_TOOL_SCHEMAS_BYTES)
