"""Tools, tool resources and output formats of assistants and runs: JSON to protos and back."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

import orjson
from corral.control.v1 import assistant_pb2, run_pb2, tool_pb2, vector_store_service_pb2
from pydantic import Field, Tag
from typing_extensions import TypedDict

from dialects.openai.chat.output_format import JsonSchemaFormat
from dialects.openai.chat.tools import FunctionDefinition
from dialects.openai.resources.vector_stores import create_store_request
from dialects.openai.shared.tools import (
    FileSearchSettings,
    function_to_proto,
    schema_to_proto,
    search_to_proto,
)
from dialects.shared.fields import BY_KIND, WireModel
from dialects.shared.json_body import answer_value
from svc_kit.errors import MissingField, UnsupportedField, UnsupportedValue


class AssistantTool(WireModel):
    """A tool of an assistant. code_interpreter is rejected: this server runs no generated code."""

    type: Literal["function", "file_search", "code_interpreter"]
    function: FunctionDefinition | None = None
    file_search: FileSearchSettings | None = None


class FileSearchResources(WireModel):
    vector_store_ids: list[str] | None = Field(None, description="At most one.")
    vector_stores: list[dict[str, Any]] | None = Field(
        None, description="At most one, created with the object. Only allowed on creation."
    )


class CodeInterpreterResources(WireModel):
    """Resources of code_interpreter. Not supported."""

    file_ids: list[str] | None = None


class ToolResourcesBody(WireModel):
    file_search: FileSearchResources | None = None
    code_interpreter: CodeInterpreterResources | None = Field(None, description="Not supported.")


class AnswerForm(WireModel):
    """The output format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


AssistantFormat = Annotated[
    Annotated[Literal["auto"], Tag("~string")] | Annotated[AnswerForm, Tag("~object")], BY_KIND
]


class FunctionObject(TypedDict):
    """A function that callers carry out."""

    name: str
    description: NotRequired[str]
    parameters: NotRequired[dict[str, Any]]
    strict: NotRequired[bool]


class FunctionToolObject(TypedDict):
    type: Literal["function"]
    function: FunctionObject


class RankingObject(TypedDict):
    """How search results are ranked."""

    ranker: str
    score_threshold: float


class FileSearchObject(TypedDict):
    """Settings of file_search."""

    max_num_results: NotRequired[int]
    ranking_options: NotRequired[RankingObject]
    filters: NotRequired[dict[str, Any]]


class FileSearchToolObject(TypedDict):
    type: Literal["file_search"]
    file_search: FileSearchObject


ToolObject = FunctionToolObject | FileSearchToolObject


class SearchedStores(TypedDict):
    vector_store_ids: list[str]


class ToolResources(TypedDict):
    file_search: NotRequired[SearchedStores]


class PlainFormatObject(TypedDict):
    """An output format without a schema."""

    type: Literal["text", "json_object"]


class AnswerSchema(TypedDict):
    """The schema of answers."""

    name: str
    schema: dict[str, Any]
    description: NotRequired[str]
    strict: NotRequired[bool]


class SchemaFormatObject(TypedDict):
    type: Literal["json_schema"]
    json_schema: AnswerSchema


AnswerFormatObject = Literal["auto"] | PlainFormatObject | SchemaFormatObject


def tools_to_proto(tools: Sequence[AssistantTool]) -> list[tool_pb2.Tool]:
    """Convert tools. Raises MissingField or UnsupportedValue."""
    return [_tool_to_proto(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def tool_objects(tools: Sequence[tool_pb2.Tool]) -> list[ToolObject]:
    """Tools as JSON."""
    return [_tool_object(tool) for tool in tools]


def resources_to_proto(
    resources: ToolResourcesBody | None, *, allow_new_stores: bool = False
) -> tool_pb2.ToolResources:
    """Convert tool resources, except new vector stores, for which see `new_stores_to_proto`.

    Raises UnsupportedField for code_interpreter files and for new stores that are not allowed.
    """
    if resources is None:
        return tool_pb2.ToolResources()
    if resources.code_interpreter is not None and resources.code_interpreter.file_ids:
        raise UnsupportedField(field="tool_resources.code_interpreter")
    search = resources.file_search or FileSearchResources()
    if search.vector_stores and not allow_new_stores:
        raise UnsupportedField(field="tool_resources.file_search.vector_stores")
    return tool_pb2.ToolResources(vector_store_ids=search.vector_store_ids)


def new_stores_to_proto(
    resources: ToolResourcesBody | None,
) -> list[vector_store_service_pb2.CreateVectorStoreRequest]:
    """Convert the vector stores to create with an object. Raises DomainErrors."""
    search = None if resources is None else resources.file_search
    stores = [] if search is None else search.vector_stores or []
    return [create_store_request(store, "") for store in stores]


def resources_object(resources: tool_pb2.ToolResources) -> ToolResources:
    """Tool resources as JSON."""
    stores = list(resources.vector_store_ids)
    return {"file_search": {"vector_store_ids": stores}} if stores else {}


def format_to_proto(answer: str | AnswerForm | None) -> tool_pb2.AnswerFormat | None:
    """Convert an output format; "auto" becomes None. Raises MissingField."""
    if answer is None or isinstance(answer, str):
        return None
    if answer.type != "json_schema":
        return tool_pb2.AnswerFormat(kind=f"KIND_{answer.type.upper()}")
    schema = answer.json_schema
    if schema is None or schema.schema_ is None:
        raise MissingField(field="response_format.json_schema.schema")
    return schema_to_proto(schema)


def format_object(owner: assistant_pb2.Assistant | run_pb2.Run) -> AnswerFormatObject:
    """The output format of an assistant or run as JSON; "auto" if it is not set."""
    if not owner.HasField("response_format"):
        return "auto"
    answer = owner.response_format
    if answer.kind != tool_pb2.AnswerFormat.KIND_JSON_SCHEMA:
        is_object = answer.kind == tool_pb2.AnswerFormat.KIND_JSON_OBJECT
        return {"type": "json_object" if is_object else "text"}
    schema: AnswerSchema = {"name": answer.name, "schema": answer_value(answer.schema_json or "{}")}
    if answer.description:
        schema["description"] = answer.description
    if answer.HasField("strict"):
        schema["strict"] = answer.strict
    return {"type": "json_schema", "json_schema": schema}


def _tool_to_proto(tool: AssistantTool, path: str) -> tool_pb2.Tool:
    if tool.type == "code_interpreter":
        raise UnsupportedValue(field=f"{path}.type", value=tool.type)
    if tool.type == "file_search":
        return tool_pb2.Tool(file_search=search_to_proto(tool.file_search or FileSearchSettings()))
    function = tool.function
    if function is None:
        raise MissingField(field=f"{path}.function")
    return tool_pb2.Tool(function=function_to_proto(function))


def _tool_object(tool: tool_pb2.Tool) -> ToolObject:
    if tool.WhichOneof("tool") == "file_search":
        return {"type": "file_search", "file_search": _search_object(tool.file_search)}
    function = tool.function
    written: FunctionObject = {"name": function.name}
    if function.description:
        written["description"] = function.description
    if function.parameters_json:
        written["parameters"] = answer_value(function.parameters_json)
    if function.HasField("strict"):
        written["strict"] = function.strict
    return {"type": "function", "function": written}


def _search_object(search: tool_pb2.FileSearchTool) -> FileSearchObject:
    written: FileSearchObject = {}
    if search.HasField("max_results"):
        written["max_num_results"] = search.max_results
    if search.ranker or search.HasField("score_threshold"):
        written["ranking_options"] = {
            "ranker": search.ranker or "auto",
            "score_threshold": search.score_threshold,
        }
    if search.filters_json:
        written["filters"] = orjson.loads(search.filters_json)
    return written
