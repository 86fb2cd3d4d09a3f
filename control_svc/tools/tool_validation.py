"""Validation of tools, output formats and resources of assistants, runs and responses.

The inference service checks whether a model supports a schema when the schema is used.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from control_svc.base.validation import check_length
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
from control_svc.vector_stores.filters import filter_from_json
from control_svc.vector_stores.model import NewVectorStore
from svc_kit.errors import (
    InvalidField,
    InvalidJson,
    MissingField,
    UnsupportedValue,
)

MAX_STORES: Final = 1
"""Vector stores of an assistant or a thread."""
MAX_ID_CHARACTERS: Final = 64
REGEX: Final = "regex"
"""The only grammar of custom tools that can be enforced, since it can be within a JSON string."""
SYNTAXES: Final = (REGEX, "lark")
REASONING_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def check_tools(tools: Sequence[Tool], field: str = "tools") -> None:
    """Validate each tool, and that names are unique.

    Raises InvalidField, InvalidJson, MissingField, OutOfRange or TooLong for what the limits of the
    proto do not say.
    """
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"{field}[{index}]"
        _check_tool(path, tool)
        name = tool.name if isinstance(tool, FunctionTool | CustomTool) else tool.kind
        if tool.kind != "mcp" and name in names:
            raise InvalidField(field=path, problem=f"there is another tool '{name}'")
        names.add(name)


def check_choice(choice: ToolChoice, tools: Sequence[Tool], field: str = "tool_choice") -> None:
    """Validate that a choice names existing tools, and requires a call only if there are tools.

    Raises InvalidField.
    """
    if choice.mode is ChoiceMode.REQUIRED and not tools:
        raise InvalidField(field=field, problem="it is only allowed when 'tools' are specified")
    names = {tool.name for tool in tools if isinstance(tool, FunctionTool | CustomTool)}
    known = names | {tool.kind for tool in tools}
    for name in choice.allowed_names:
        if name not in known:
            raise InvalidField(field=field, problem=f"'{name}' is not among 'tools'")


def check_format(output_format: ResponseFormat | None, field: str = "response_format") -> None:
    """Validate an output format. Raises MissingField, InvalidField or InvalidJson."""
    if output_format is None or output_format.kind is not FormatKind.JSON_SCHEMA:
        return
    _check_name(f"{field}.json_schema.name", output_format.name)
    check_schema(f"{field}.json_schema.schema", output_format.schema_json)


def check_schema(field: str, schema_json: str) -> None:
    """Validate that a JSON Schema is a JSON object; it may be empty.

    Raises InvalidField or InvalidJson.
    """
    try:
        schema = json.loads(schema_json or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidJson(field=field, problem=str(error)) from None
    if not isinstance(schema, dict):
        raise InvalidField(field=field, problem="it is not an object")


def check_resources(resources: ToolResources, field: str = "tool_resources") -> None:
    """Validate vector store ids. Raises TooLong or MissingField."""
    path = f"{field}.file_search.vector_store_ids"
    check_length(path, resources.vector_store_ids, MAX_STORES)
    for store in resources.vector_store_ids:
        if not store:
            raise MissingField(field=path)
        check_length(path, store, MAX_ID_CHARACTERS)


def check_new_stores(
    stores: Sequence[NewVectorStore], resources: ToolResources, field: str = "tool_resources"
) -> None:
    """Validate the stores to create with an object that also has `resources`.

    Raises MissingField, InvalidField, OutOfRange or TooLong.
    """
    path = f"{field}.file_search.vector_stores"
    check_length(path, (*stores, *resources.vector_store_ids), MAX_STORES)
    for index, store in enumerate(stores):
        store.check(f"{path}[{index}].")


def check_effort(effort: str, field: str = "reasoning_effort") -> None:
    """Validate the reasoning effort; empty means unset. Raises UnsupportedValue."""
    if effort and effort not in REASONING_EFFORTS:
        raise UnsupportedValue(field=field, value=effort)


def _check_tool(path: str, tool: Tool) -> None:
    if isinstance(tool, FunctionTool):
        _check_name(f"{path}.function.name", tool.name)
        check_schema(f"{path}.function.parameters", tool.parameters_json)
    elif isinstance(tool, CustomTool):
        _check_name(f"{path}.custom.name", tool.name)
        _check_grammar(path, tool)
    elif isinstance(tool, FileSearchTool):
        filter_from_json(tool.filters_json, f"{path}.file_search.filters")


def check_enforceable(
    tools: Sequence[Tool], choice: ToolChoice | None, output_format: ResponseFormat | None
) -> None:
    """Validate that the grammars of custom tools can be enforced if a call is required. Otherwise
    the model reads them only, unless the output format distinguishes calls from text.

    Raises InvalidField or UnsupportedValue.
    """
    if choice is None or choice.mode is not ChoiceMode.REQUIRED:
        return
    has_format = output_format is not None and output_format.kind is not FormatKind.TEXT
    has_hosted = any(isinstance(tool, FileSearchTool | McpTool) for tool in tools)
    for index, tool in enumerate(tools):
        if not isinstance(tool, CustomTool) or not tool.syntax:
            continue
        if tool.syntax != REGEX and tool.name in (choice.allowed_names or (tool.name,)):
            raise UnsupportedValue(field=f"tools[{index}].format.syntax", value=tool.syntax)
        if has_hosted and not has_format:
            problem = "a grammar cannot be enforced beside 'file_search' or 'mcp' tools"
            raise InvalidField(field=f"tools[{index}].format", problem=problem)


def _check_grammar(path: str, tool: CustomTool) -> None:
    if not tool.syntax:
        return
    if tool.syntax not in SYNTAXES:
        raise UnsupportedValue(field=f"{path}.format.syntax", value=tool.syntax)
    if not tool.definition:
        raise MissingField(field=f"{path}.format.definition")


def _check_name(field: str, name: str) -> None:
    if not name:
        raise MissingField(field=field)
    if not _NAME.fullmatch(name):
        raise InvalidField(
            field=field, problem="it is not 1 to 128 letters, digits, '_', '-' or '.'"
        )
