"""Tools, tool choice, output format and resources: settings that assistants, runs and responses
share.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from control_svc.inference.turns import ChoiceMode


@dataclass(frozen=True, kw_only=True)
class FunctionTool:
    """A function that the client executes."""

    kind: Literal["function"] = "function"
    name: str
    description: str = ""
    parameters_json: str = ""
    """JSON Schema of the arguments; empty if there is none."""
    strict: bool | None = None


@dataclass(frozen=True, kw_only=True)
class CustomTool:
    """A client tool that takes free text, or text that follows a grammar."""

    kind: Literal["custom"] = "custom"
    name: str
    description: str = ""
    syntax: str = ""
    """Kind of the grammar: "regex"; empty for free text."""
    definition: str = ""


@dataclass(frozen=True, kw_only=True)
class FileSearchTool:
    """Search of vector stores, executed by the server."""

    kind: Literal["file_search"] = "file_search"
    vector_store_ids: tuple[str, ...] = ()
    """Empty for assistants and runs, whose stores are in their `ToolResources`."""
    max_results: int | None = None
    """1 to 50; None means the server's default."""
    ranker: str = ""
    score_threshold: float | None = None
    filters_json: str = ""


@dataclass(frozen=True, kw_only=True)
class McpTool:
    """The tools of an MCP server that the operator configured."""

    kind: Literal["mcp"] = "mcp"
    server_label: str
    description: str = ""
    allowed_tools: tuple[str, ...] | None = None
    """None means all."""
    require_approval: Literal["always", "never"] = "always"
    approval_exempt: tuple[str, ...] = ()
    """Tools for which the opposite of `require_approval` applies."""

    @property
    def limits_tools(self) -> bool:
        """Whether only some tools are allowed."""
        return self.allowed_tools is not None


Tool = FunctionTool | CustomTool | FileSearchTool | McpTool


@dataclass(frozen=True, kw_only=True)
class ToolChoice:
    """Which tools the model may or must call."""

    mode: ChoiceMode = ChoiceMode.AUTO
    allowed_names: tuple[str, ...] = ()
    """Functions and custom tools by name, hosted tools by kind; empty means all."""
    is_one: bool = False
    """Whether the request named a single tool instead of a list."""


class FormatKind(StrEnum):
    TEXT = "text"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"


@dataclass(frozen=True, kw_only=True)
class ResponseFormat:
    kind: FormatKind = FormatKind.TEXT
    name: str = ""
    description: str = ""
    schema_json: str = ""
    strict: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ToolResources:
    vector_store_ids: tuple[str, ...] = ()
    """For file_search; at most one, except in a run."""


NO_RESOURCES = ToolResources()
