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
_OURS: Final = {
    "": ("num_choices", "resume", "label"),
    "output.": ("token_ids", "prompt_logprobs"),
    "cache.": ("keep_for",),
}
"""Paths of options that callers may not set."""


def tools_from_pb(tools: Sequence[pb.Tool], field: str = "tools") -> tuple[Tool, ...]:
    """The tools, in order, not checked. Raises MissingField or InvalidField."""
    return tuple(_tool_from_pb(tool, f"{field}[{index}]") for index, tool in enumerate(tools))


def tools_to_pb(tools: Sequence[Tool]) -> list[pb.Tool]:
    """The tools, in order."""
    return [_tool_to_pb(tool) for tool in tools]


def choice_from_pb(choice: pb.ToolSelection, field: str = "tool_choice") -> ToolChoice:
    """Which tools are called. Raises InvalidField."""
    mode = _MODES.get(choice.mode)
    if mode is None:
        raise InvalidField(field=f"{field}.mode", problem=f"{choice.mode} is no mode")
    return ToolChoice(mode=mode, allowed_names=tuple(choice.allowed_names), is_one=choice.is_one)


def choice_to_pb(choice: ToolChoice) -> pb.ToolSelection:
    """Which tools are called."""
    return pb.ToolSelection(
        mode=f"MODE_{choice.mode.name}",
        allowed_names=choice.allowed_names,
        is_one=choice.is_one,
    )


def format_from_pb(answer: pb.AnswerFormat, field: str = "response_format") -> ResponseFormat:
    """The form of an answer, not checked. Raises InvalidField."""
    kind = _KINDS.get(answer.kind)
    if kind is None:
        raise InvalidField(field=f"{field}.kind", problem=f"{answer.kind} is no kind")
    return ResponseFormat(
        kind=kind,
        name=answer.name,
        description=answer.description,
        schema_json=answer.schema_json,
        strict=answer.strict if answer.HasField("strict") else None,
    )


def format_to_pb(answer: ResponseFormat) -> pb.AnswerFormat:
    """The form of an answer."""
    return pb.AnswerFormat(
        kind=f"KIND_{answer.kind.name}",
        name=answer.name,
        description=answer.description,
        schema_json=answer.schema_json,
        strict=answer.strict,
    )


def resources_from_pb(resources: pb.ToolResources) -> ToolResources:
    """What tools work with, not checked."""
    return ToolResources(vector_store_ids=tuple(resources.vector_store_ids))


def resources_to_pb(resources: ToolResources) -> pb.ToolResources | None:
    """What tools work with; None: nothing."""
    if not resources.vector_store_ids:
        return None
    return pb.ToolResources(vector_store_ids=resources.vector_store_ids)


def options_from_pb(options: GenerationOptions, field: str = "options") -> bytes:
    """Convert generation options; whether a model supports them is decided when it runs. Raises
    UnsupportedField for options that callers may not set.
    """
    for place, message in (("", options), ("output.", options.output), ("cache.", options.cache)):
        for said, _ in message.ListFields():
            if said.name in _OURS[place]:
                raise UnsupportedField(field=f"{field}.{place}{said.name}")
    return options.SerializeToString(deterministic=True)


def options_to_pb(options: bytes) -> GenerationOptions | None:
    """Convert generation options; None if absent."""
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
        raise InvalidField(field=f"{field}.approval", problem=f"{mcp.approval} is no approval")
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
