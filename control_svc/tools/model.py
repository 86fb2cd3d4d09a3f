"""Tools, tool choice, output format and resources: settings that assistants, runs and responses
share.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from control_svc.inference.turns import ChoiceMode


@dataclass(frozen=True, kw_only=True)
class FunctionTool:
    """A function of the client's: the model's call goes to the client."""

    kind: Literal["function"] = "function"
    name: str
    description: str = ""
    parameters_json: str = ""
    """The JSON Schema of its arguments; empty: none."""
    strict: bool | None = None


@dataclass(frozen=True, kw_only=True)
class CustomTool:
    """A tool of the client's that takes free text, or text of a grammar."""

    kind: Literal["custom"] = "custom"
    name: str
    description: str = ""
    syntax: str = ""
    """What the text follows: "regex"; empty: nothing, it is free."""
    definition: str = ""


@dataclass(frozen=True, kw_only=True)
class FileSearchTool:
    """The server searches the caller's vector stores for the model."""

    kind: Literal["file_search"] = "file_search"
    vector_store_ids: tuple[str, ...] = ()
    """Empty for assistants and runs, whose stores are among their resources."""
    max_results: int | None = None
    """1 to 50; None: the server's own."""
    ranker: str = ""
    score_threshold: float | None = None
    filters_json: str = ""


@dataclass(frozen=True, kw_only=True)
class McpTool:
    """The tools of a remote server that the operator has named."""

    kind: Literal["mcp"] = "mcp"
    server_label: str
    description: str = ""
    allowed_tools: tuple[str, ...] | None = None
    """None: all of them."""
    require_approval: Literal["always", "never"] = "always"
    approval_exempt: tuple[str, ...] = ()
    """Tools for which the other rule holds."""


Tool = FunctionTool | CustomTool | FileSearchTool | McpTool


@dataclass(frozen=True, kw_only=True)
class ToolChoice:
    """Which calls are allowed, or asked for."""

    mode: ChoiceMode = ChoiceMode.AUTO
    allowed_names: tuple[str, ...] = ()
    """Functions and custom tools by name, hosted tools by kind; empty: all."""
    is_one: bool = False
    """It was given as the name of one tool, not as a list."""


class FormatKind(StrEnum):
    """In which form the model answers."""

    TEXT = "text"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"


@dataclass(frozen=True, kw_only=True)
class ResponseFormat:
    """The form of an answer."""

    kind: FormatKind = FormatKind.TEXT
    name: str = ""
    description: str = ""
    schema_json: str = ""
    strict: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ToolResources:
    """What the tools of an assistant or a thread work with."""

    vector_store_ids: tuple[str, ...] = ()
    """Of file_search; at most one."""


NO_RESOURCES = ToolResources()
