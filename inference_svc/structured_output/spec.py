"""The requested output format of a turn, as plain data that is sent to the sandbox as JSON."""

from dataclasses import dataclass, field, replace

from inference_svc.output_format import OutputFormat as OutputFormat
from inference_svc.output_format import OutputFormatKind as OutputFormatKind
from inference_svc.validation import check_bytes

MAX_OUTPUT_FORMAT_BYTES = 128 * 1024
MAX_TOOL_SCHEMAS_BYTES = 256 * 1024
ANY_OBJECT = '{"type": "object"}'
NUMBER, SPACE, ID = "\0", "\1", "\2"
"""Placeholders in a `ToolCallSyntax` for a number, white space and a call id that the model
chooses."""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called. Its arguments match `schema` (JSON text; empty: no arguments).
    What of it cannot be enforced is an error if `strict`, and ignored otherwise."""

    name: str
    schema: str
    strict: bool
    field: str


@dataclass(frozen=True, slots=True)
class ArgumentSyntax:
    """A syntax of arguments that are not a JSON object.

    Each is `begin`, the key, `key_end`, the value and `end`; `between` separates them. `key_end`
    may have "{type}" and "{is_string}", and `end` may have "{key}" and at its end `SPACE`.
    """

    begin: str
    key_end: str
    end: str = ""
    between: str = ""
    quotes: tuple[tuple[str, str], ...] | None = ()
    """The pairs of texts that may be around a string, which ends at the second one, or without
    pairs at `end`. None: strings are quoted as in JSON or Python."""
    may_quote: bool = False
    """Quotes may be omitted."""
    excludes: tuple[str, ...] = ()
    """Other texts that end a string."""
    padded: bool = False
    """Values may be between line breaks, which do not belong to them."""
    words: dict[str, str] = field(default_factory=dict)
    """What may be written for "true", "false" and "null"."""
    item: tuple[str, str] | None = None
    """The texts around an item of a list, if a list is only its items and an object only its
    members."""
    brackets: bool = False
    """Objects and lists are written in this syntax, in brackets. Without it, and without `item`,
    they are JSON."""
    key: str = r'[^<>"\n]+'
    """What a key without quotes matches."""
    extra_key: str = r'[^<>"\n:=,{}\[\]() ]+'
    """What such a key matches that the schema does not name, as a regular expression of Lark."""
    quotes_keys: bool = False
    """The keys of members of an argument are JSON strings, followed by a colon."""
    quotes_other_keys: bool = False
    """A key that does not match `key` is a JSON string."""
    sorts_keys: bool = False
    """Arguments are in alphabetical order."""

    @property
    def has_bare_strings(self) -> bool:
        """Whether strings may be without quotes."""
        return self.may_quote or self.quotes == ()


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """A syntax of tool calls.

    Each call is `head`, the name, `middle`, the arguments, `tail`. `before` and `after` enclose all
    calls, and `between` separates them. Without `arguments`, these are a JSON object.
    """

    head: str
    middle: str
    tail: str = ""
    before: str = ""
    between: str = ""
    after: str = ""
    arguments: ArgumentSyntax | None = None
    ends_turn: bool = False
    """No other call can follow."""

    @property
    def begin(self) -> str:
        """The text before the first name."""
        return self.before + self.head


@dataclass(frozen=True, slots=True)
class ToolCallSpec:
    """Tool calls in one of `syntaxes`.

    With `required`, the output must be calls; `several` allows more than one. Each syntax begins
    with one of the `triggers`: the output is free text until one of them, then a call. Without
    triggers, the output is constrained from the start. `excludes` must not be generated, since
    the parser would mistake them for the start of a call.
    """

    syntaxes: tuple[ToolCallSyntax, ...]
    tools: tuple[CallableTool, ...]
    required: bool
    several: bool
    triggers: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    """Control tokens: triggers count only in the text after one of these and at the start."""
    begin: str = ""
    """Without triggers: output that begins with this text is calls, other output is free."""
    excludes: tuple[str, ...] = ()

    @property
    def is_in_free_text(self) -> bool:
        """Whether the output may be other text too."""
        return bool(self.triggers or self.begin)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning before the constrained output. `is_open`: the prompt has opened it; otherwise it is
    optional. `excludes` would end it without its end marker. `after` follows it."""

    begin: str
    end: str
    is_open: bool
    excludes: tuple[str, ...] = ()
    after: str = ""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The constraints of one output: at least a format or calls. `opening` is before the format."""

    form: OutputFormat | None
    calls: ToolCallSpec | None
    thought: Reasoning | None
    opening: str = ""

    @property
    def only_form(self) -> OutputFormat | None:
        """The format, if the output is nothing else."""
        return None if self.calls or self.thought or self.opening else self.form

    @property
    def may_be_free(self) -> bool:
        """Whether it only enforces the syntax of calls in free text, by tools none of which is
        strict."""
        calls = self.calls
        if self.form is not None or calls is None or not calls.is_in_free_text:
            return False
        return not calls.required and not any(tool.strict for tool in calls.tools)

    def check_sizes(self) -> None:
        """Raise `TooLong` if the format or the tools exceed their size limits."""
        if self.form is not None:
            check_bytes(self.form.field, self.form.text, MAX_OUTPUT_FORMAT_BYTES)
        if self.calls is not None:
            check_bytes("tools", self._schemas(), MAX_TOOL_SCHEMAS_BYTES)

    @property
    def has_large_tools(self) -> bool:
        """Whether the schemas of all tools exceed the size limit."""
        return len(self._schemas().encode()) > MAX_TOOL_SCHEMAS_BYTES

    @property
    def loose_fields(self) -> set[str]:
        """The fields of the schemas of tools that are not strict."""
        tools = self.calls.tools if self.calls is not None else ()
        return {tool.field for tool in tools if not tool.strict and tool.schema != ANY_OBJECT}

    def without_schemas(self, fields: set[str]) -> "OutputSpec":
        """The same with any JSON object as the arguments of these tools."""
        if self.calls is None:
            return self
        tools = tuple(
            replace(tool, schema=ANY_OBJECT) if tool.field in fields else tool
            for tool in self.calls.tools
        )
        return replace(self, calls=replace(self.calls, tools=tools))

    def _schemas(self) -> str:
        return "".join(tool.schema for tool in self.calls.tools) if self.calls is not None else ""
