"""Validation of tools, output formats and resources of assistants, runs and responses.

Whether a model supports a schema is decided by the inference service, when it is used.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

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
    OutOfRange,
    TooLong,
    UnsupportedValue,
)

MAX_TOOLS: Final = 128
MAX_SCHEMA_BYTES: Final = 131_072
MAX_TOOL_DESCRIPTION_CHARACTERS: Final = 4096
MOST_RESULTS: Final = 50
MAX_STORES: Final = 1
"""Of an assistant or a thread."""
MAX_SEARCHED: Final = 16
"""Stores that one tool names itself; each is searched whole."""
MAX_ID_CHARACTERS: Final = 64
REGEX: Final = "regex"
"""The grammar of custom tools that calls can be held to: it works within a JSON string."""
REASONING_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_tools(tools: Sequence[Tool], most: int = MAX_TOOLS, field: str = "tools") -> None:
    """Each tool, and that no name is there twice.

    Raises InvalidField, InvalidJson, MissingField, OutOfRange or TooLong.
    """
    if len(tools) > most:
        raise TooLong(field=field, length=len(tools), limit=most)
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"{field}[{index}]"
        _check_tool(path, tool)
        name = tool.name if isinstance(tool, FunctionTool | CustomTool) else tool.kind
        if tool.kind != "mcp" and name in seen:
            raise InvalidField(field=path, problem=f"there is another tool '{name}'")
        seen.add(name)


def check_choice(choice: ToolChoice, tools: Sequence[Tool], field: str = "tool_choice") -> None:
    """That a choice names tools that there are, and asks for no call without any.

    Raises InvalidField.
    """
    if choice.mode is ChoiceMode.REQUIRED and not tools:
        raise InvalidField(field=field, problem="it is only allowed when 'tools' are specified")
    names = {tool.name for tool in tools if isinstance(tool, FunctionTool | CustomTool)}
    known = names | {tool.kind for tool in tools}
    for name in choice.allowed_names:
        if name not in known:
            raise InvalidField(field=field, problem=f"'{name}' is not among 'tools'")


def check_format(answer: ResponseFormat | None, field: str = "response_format") -> None:
    """The form of an answer; None is none. Raises InvalidField, InvalidJson or TooLong."""
    if answer is None or answer.kind is not FormatKind.JSON_SCHEMA:
        return
    _check_name(f"{field}.json_schema.name", answer.name)
    check_schema(f"{field}.json_schema.schema", answer.schema_json)


def check_schema(field: str, schema_json: str) -> None:
    """That a JSON Schema is an object of a bearable size; empty is none.

    Raises InvalidField, InvalidJson or TooLong.
    """
    size = len(schema_json.encode())
    if size > MAX_SCHEMA_BYTES:
        raise TooLong(field=field, length=size, limit=MAX_SCHEMA_BYTES, unit="bytes")
    try:
        schema = json.loads(schema_json or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidJson(field=field, problem=str(error)) from None
    if not isinstance(schema, dict):
        raise InvalidField(field=field, problem="it is not an object")


def check_resources(resources: ToolResources, field: str = "tool_resources") -> None:
    """What tools work with. Raises TooLong or MissingField."""
    path = f"{field}.file_search.vector_store_ids"
    if len(resources.vector_store_ids) > MAX_STORES:
        raise TooLong(field=path, length=len(resources.vector_store_ids), limit=MAX_STORES)
    for store in resources.vector_store_ids:
        if not store:
            raise MissingField(field=path)
        if len(store) > MAX_ID_CHARACTERS:
            raise TooLong(field=path, length=len(store), limit=MAX_ID_CHARACTERS, unit="characters")


def check_new_stores(
    stores: Sequence[NewVectorStore], resources: ToolResources, field: str = "tool_resources"
) -> None:
    """Stores that are made with an object, beside those that it names.

    Raises MissingField, InvalidField, OutOfRange or TooLong.
    """
    path = f"{field}.file_search.vector_stores"
    length = len(stores) + len(resources.vector_store_ids)
    if length > MAX_STORES:
        raise TooLong(field=path, length=length, limit=MAX_STORES)
    for index, store in enumerate(stores):
        store.check(f"{path}[{index}].")


def check_effort(effort: str, field: str = "reasoning_effort") -> None:
    """Validate the reasoning effort; empty means unset. Raises UnsupportedValue."""
    if effort and effort not in REASONING_EFFORTS:
        raise UnsupportedValue(field=field, value=effort)


def _check_tool(path: str, tool: Tool) -> None:
    if isinstance(tool, FunctionTool):
        _check_name(f"{path}.function.name", tool.name)
        _check_description(f"{path}.function.description", tool.description)
        check_schema(f"{path}.function.parameters", tool.parameters_json)
    elif isinstance(tool, CustomTool):
        _check_name(f"{path}.custom.name", tool.name)
        _check_description(f"{path}.custom.description", tool.description)
        _check_grammar(path, tool)
    elif isinstance(tool, FileSearchTool):
        _check_search(f"{path}.file_search", tool)


def check_enforceable(
    tools: Sequence[Tool], choice: ToolChoice | None, answer: ResponseFormat | None
) -> None:
    """Validate that custom tools with a grammar are only used where calls can be constrained: with
    a required call, or with an output format that calls can be told apart from. Raises
    InvalidField.
    """
    is_held = answer is not None and answer.kind is not FormatKind.TEXT
    mode = ChoiceMode.AUTO if choice is None else choice.mode
    if is_held or mode is ChoiceMode.NONE:
        return
    hosts = any(isinstance(tool, FileSearchTool | McpTool) for tool in tools)
    for index, tool in enumerate(tools):
        if not isinstance(tool, CustomTool) or not tool.syntax:
            continue
        if mode is not ChoiceMode.REQUIRED:
            problem = f"the grammar of '{tool.name}' is followed where a call is required"
            raise InvalidField(field="tool_choice", problem=problem)
        if hosts:
            problem = "no grammar is followed beside tools of the server"
            raise InvalidField(field=f"tools[{index}].format", problem=problem)


def _check_grammar(path: str, tool: CustomTool) -> None:
    if not tool.syntax:
        return
    if tool.syntax != REGEX:
        raise UnsupportedValue(field=f"{path}.format.syntax", value=tool.syntax)
    if not tool.definition:
        raise MissingField(field=f"{path}.format.definition")
    size = len(tool.definition.encode())
    if size > MAX_SCHEMA_BYTES:
        raise TooLong(
            field=f"{path}.format.definition", length=size, limit=MAX_SCHEMA_BYTES, unit="bytes"
        )


def _check_search(path: str, tool: FileSearchTool) -> None:
    num_stores = len(tool.vector_store_ids)
    if num_stores > MAX_SEARCHED:
        raise TooLong(field=f"{path}.vector_store_ids", length=num_stores, limit=MAX_SEARCHED)
    filter_from_json(tool.filters_json, f"{path}.filters")
    results, threshold = tool.max_results, tool.score_threshold
    if results is not None and not 1 <= results <= MOST_RESULTS:
        raise OutOfRange(
            field=f"{path}.max_num_results", value=results, minimum=1, maximum=MOST_RESULTS
        )
    if threshold is not None and not 0 <= threshold <= 1:
        raise OutOfRange(
            field=f"{path}.ranking_options.score_threshold", value=threshold, minimum=0, maximum=1
        )


def _check_name(field: str, name: str) -> None:
    if not name:
        raise MissingField(field=field)
    if not _NAME.fullmatch(name):
        raise InvalidField(field=field, problem="it is not 1 to 64 letters, digits, '_' or '-'")


def _check_description(field: str, text: str) -> None:
    if len(text) > MAX_TOOL_DESCRIPTION_CHARACTERS:
        raise TooLong(
            field=field,
            length=len(text),
            limit=MAX_TOOL_DESCRIPTION_CHARACTERS,
            unit="characters",
        )
