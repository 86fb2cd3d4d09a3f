"""Conversion of tools, tool choice, output formats and options between protos and dataclasses."""

from collections.abc import Sequence
from typing import Final, Literal

from corral.control.v1 import tool_pb2 as pb
from corral.inference.v1.generation_pb2 import GenerationOptions

from control_svc.inference.turns import ChoiceMode
from control_svc.tools.model import (
    CustomTool,
    FileSearchTool,
    FormatKind,
    FunctionTool,
    McpTool,
    ResponseFormat,
    Tool,
    ToolChoice,
    ToolResources,
)
from svc_kit.errors import InvalidField, MissingField, UnsupportedField

_MODES: Final = {
    pb.ToolSelection.MODE_UNSPECIFIED: ChoiceMode.AUTO,
    pb.ToolSelection.MODE_NONE: ChoiceMode.NONE,
    pb.ToolSelection.MODE_AUTO: ChoiceMode.AUTO,
    pb.ToolSelection.MODE_REQUIRED: ChoiceMode.REQUIRED,
}
_KINDS: Final = {
    pb.AnswerFormat.KIND_UNSPECIFIED: FormatKind.TEXT,
    pb.AnswerFormat.KIND_TEXT: FormatKind.TEXT,
    pb.AnswerFormat.KIND_JSON_OBJECT: FormatKind.JSON_OBJECT,
    pb.AnswerFormat.KIND_JSON_SCHEMA: FormatKind.JSON_SCHEMA,
}
_INTERNAL_OPTIONS: Final = {
    "": ("num_choices", "resume", "label"),
    "output.": ("token_ids", "prompt_logprobs"),
    "cache.": ("keep_for",),
}
"""Options that callers may not set, by path prefix."""


def tools_from_pb(tools: Sequence[pb.Tool], field: str = "tools") -> tuple[Tool, ...]:
    """Convert tools without validation. Raises MissingField or InvalidField."""
    return tuple(_tool_from_pb(tool, f"{field}[{index}]") for index, tool in enumerate(tools))


def tools_to_pb(tools: Sequence[Tool]) -> list[pb.Tool]:
    """Convert tools."""
    return [_tool_to_pb(tool) for tool in tools]


def choice_from_pb(choice: pb.ToolSelection, field: str = "tool_choice") -> ToolChoice:
    """Convert a tool choice. Raises InvalidField."""
    mode = _MODES.get(choice.mode)
    if mode is None:
        raise InvalidField(field=f"{field}.mode", problem=f"{choice.mode} is not a mode")
    return ToolChoice(mode=mode, allowed_names=tuple(choice.allowed_names), is_one=choice.is_one)


def choice_to_pb(choice: ToolChoice) -> pb.ToolSelection:
    """Convert a tool choice."""
    return pb.ToolSelection(
        mode=f"MODE_{choice.mode.name}",
        allowed_names=choice.allowed_names,
        is_one=choice.is_one,
    )


def format_from_pb(message: pb.AnswerFormat, field: str = "response_format") -> ResponseFormat:
    """Convert an output format without validation. Raises InvalidField."""
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise InvalidField(field=f"{field}.kind", problem=f"{message.kind} is not a kind")
    return ResponseFormat(
        kind=kind,
        name=message.name,
        description=message.description,
        schema_json=message.schema_json,
        strict=message.strict if message.HasField("strict") else None,
    )


def format_to_pb(output_format: ResponseFormat) -> pb.AnswerFormat:
    """Convert an output format."""
    return pb.AnswerFormat(
        kind=f"KIND_{output_format.kind.name}",
        name=output_format.name,
        description=output_format.description,
        schema_json=output_format.schema_json,
        strict=output_format.strict,
    )


def resources_from_pb(resources: pb.ToolResources) -> ToolResources:
    """Convert tool resources without validation."""
    return ToolResources(vector_store_ids=tuple(resources.vector_store_ids))


def resources_to_pb(resources: ToolResources) -> pb.ToolResources | None:
    """Convert tool resources; None if empty."""
    if not resources.vector_store_ids:
        return None
    return pb.ToolResources(vector_store_ids=resources.vector_store_ids)


def options_from_pb(options: GenerationOptions, field: str = "options") -> bytes:
    """Serialize generation options. Whether a model supports them is checked when it runs.

    Raises UnsupportedField for options that callers may not set.
    """
    for path, message in (("", options), ("output.", options.output), ("cache.", options.cache)):
        for descriptor, _ in message.ListFields():
            if descriptor.name in _INTERNAL_OPTIONS[path]:
                raise UnsupportedField(field=f"{field}.{path}{descriptor.name}")
    return options.SerializeToString(deterministic=True)


def options_to_pb(options: bytes) -> GenerationOptions | None:
    """Deserialize generation options; None if empty."""
    return GenerationOptions.FromString(options) if options else None


def _tool_from_pb(tool: pb.Tool, field: str) -> Tool:
    match tool.WhichOneof("tool"):
        case "function":
            function = tool.function
            return FunctionTool(
                name=function.name,
                description=function.description,
                parameters_json=function.parameters_json,
                strict=function.strict if function.HasField("strict") else None,
            )
        case "custom":
            custom = tool.custom
            return CustomTool(
                name=custom.name,
                description=custom.description,
                syntax=custom.syntax,
                definition=custom.definition,
            )
        case "file_search":
            return _search_from_pb(tool.file_search)
        case "mcp":
            return _mcp_from_pb(tool.mcp, f"{field}.mcp")
        case _:
            raise MissingField(field=field)


def _search_from_pb(search: pb.FileSearchTool) -> FileSearchTool:
    return FileSearchTool(
        vector_store_ids=tuple(search.vector_store_ids),
        max_results=search.max_results if search.HasField("max_results") else None,
        ranker=search.ranker,
        score_threshold=search.score_threshold if search.HasField("score_threshold") else None,
        filters_json=search.filters_json,
    )


def _mcp_from_pb(mcp: pb.McpTool, field: str) -> McpTool:
    if mcp.approval not in pb.McpTool.Approval.values():
        raise InvalidField(field=f"{field}.approval", problem=f"{mcp.approval} is not an approval")
    never = mcp.approval == pb.McpTool.APPROVAL_NEVER
    approval: Literal["always", "never"] = "never" if never else "always"
    return McpTool(
        server_label=mcp.server_label,
        description=mcp.description,
        allowed_tools=tuple(mcp.allowed_tools) if mcp.limits_tools else None,
        require_approval=approval,
        approval_exempt=tuple(mcp.approval_exempt),
    )


def _tool_to_pb(tool: Tool) -> pb.Tool:
    match tool:
        case FunctionTool():
            function = pb.FunctionTool(
                name=tool.name,
                description=tool.description,
                parameters_json=tool.parameters_json,
                strict=tool.strict,
            )
            return pb.Tool(function=function)
        case CustomTool():
            custom = pb.CustomTool(
                name=tool.name,
                description=tool.description,
                syntax=tool.syntax,
                definition=tool.definition,
            )
            return pb.Tool(custom=custom)
        case FileSearchTool():
            search = pb.FileSearchTool(
                vector_store_ids=tool.vector_store_ids,
                max_results=tool.max_results,
                ranker=tool.ranker,
                score_threshold=tool.score_threshold,
                filters_json=tool.filters_json,
            )
            return pb.Tool(file_search=search)
        case McpTool():
            return pb.Tool(mcp=_mcp_to_pb(tool))


def _mcp_to_pb(tool: McpTool) -> pb.McpTool:
    return pb.McpTool(
        server_label=tool.server_label,
        description=tool.description,
        limits_tools=tool.allowed_tools is not None,
        allowed_tools=tool.allowed_tools or (),
        approval=f"APPROVAL_{tool.require_approval.upper()}",
        approval_exempt=tool.approval_exempt,
    )
