"""Tools, output formats and resources of assistants and runs, between JSON and protos; functions
are nested in `function`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import orjson
from corral.control.v1 import tool_pb2, vector_store_service_pb2
from pydantic import Field, Tag

from openai_wire.chat.output_format import JsonSchemaFormat
from openai_wire.chat.tools import FunctionDefinition
from openai_wire.resources.vector_stores import create_store_request
from openai_wire.shared.fields import BY_KIND, WireModel
from svc_kit.errors import MissingField, UnsupportedField, UnsupportedValue

Json = dict[str, Any]

MAX_TOOLS: Final = 128


class RankingOptions(WireModel):
    """What a search leaves out."""

    ranker: str | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class FileSearchSettings(WireModel):
    """How files are searched."""

    max_num_results: Annotated[int, Field(ge=1, le=50)] | None = None
    ranking_options: RankingOptions | None = None
    filters: dict[str, Any] | None = Field(
        None, description="A condition on attributes, as searches of vector stores have it."
    )


class AssistantTool(WireModel):
    """A tool of an assistant. code_interpreter is refused: no code that a model wrote runs here."""

    type: Literal["function", "file_search", "code_interpreter"]
    function: FunctionDefinition | None = None
    file_search: FileSearchSettings | None = None


class FileSearchResources(WireModel):
    """What file_search works with."""

    vector_store_ids: list[str] | None = Field(None, description="At most one.")
    vector_stores: list[dict[str, Any]] | None = Field(
        None, description="At most one, made with the object; only where one is created."
    )


class CodeInterpreterResources(WireModel):
    """What code_interpreter would work with."""

    file_ids: list[str] | None = None


class ToolResourcesBody(WireModel):
    """What tools work with."""

    file_search: FileSearchResources | None = None
    code_interpreter: CodeInterpreterResources | None = Field(None, description="Not supported.")


class AnswerForm(WireModel):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


AssistantFormat = Annotated[
    Annotated[Literal["auto"], Tag("~string")] | Annotated[AnswerForm, Tag("~object")], BY_KIND
]


def tools_from(tools: Sequence[AssistantTool]) -> list[tool_pb2.Tool]:
    """Typed tools. Raises MissingField or UnsupportedValue."""
    return [_tool_from(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def tool_objects(tools: Sequence[tool_pb2.Tool]) -> list[Json]:
    """Tools as OpenAI writes them."""
    return [_tool_object(tool) for tool in tools]


def resources_from(
    resources: ToolResourcesBody | None, *, makes_stores: bool = False
) -> tool_pb2.ToolResources:
    """Typed resources; `makes_stores` says that `new_stores_from` looks after new ones.

    Raises UnsupportedField.
    """
    if resources is None:
        return tool_pb2.ToolResources()
    if resources.code_interpreter is not None and resources.code_interpreter.file_ids:
        raise UnsupportedField(field="tool_resources.code_interpreter")
    search = resources.file_search or FileSearchResources()
    if search.vector_stores and not makes_stores:
        raise UnsupportedField(field="tool_resources.file_search.vector_stores")
    return tool_pb2.ToolResources(vector_store_ids=search.vector_store_ids)


def new_stores_from(
    resources: ToolResourcesBody | None,
) -> list[vector_store_service_pb2.CreateVectorStoreRequest]:
    """The stores that are made with an object. Raises DomainErrors."""
    search = None if resources is None else resources.file_search
    stores = [] if search is None else search.vector_stores or []
    return [create_store_request(store, "") for store in stores]


def resources_object(resources: tool_pb2.ToolResources) -> Json:
    """Resources as OpenAI writes them."""
    stores = list(resources.vector_store_ids)
    return {"file_search": {"vector_store_ids": stores}} if stores else {}


def format_from(answer: str | AnswerForm | None) -> tool_pb2.AnswerFormat | None:
    """The typed form; None: "auto". Raises MissingField."""
    if answer is None or isinstance(answer, str):
        return None
    if answer.type != "json_schema":
        return tool_pb2.AnswerFormat(kind=f"KIND_{answer.type.upper()}")
    form = answer.json_schema
    if form is None or form.schema_ is None:
        raise MissingField(field="response_format.json_schema.schema")
    return tool_pb2.AnswerFormat(
        kind=tool_pb2.AnswerFormat.KIND_JSON_SCHEMA,
        name=form.name or "",
        description=form.description or "",
        schema_json=orjson.dumps(form.schema_).decode(),
        strict=form.strict,
    )


def format_object(answer: tool_pb2.AnswerFormat | None) -> str | Json:
    """A form as OpenAI writes it; None: "auto"."""
    if answer is None:
        return "auto"
    kind = tool_pb2.AnswerFormat.Kind.Name(answer.kind).removeprefix("KIND_").lower()
    if answer.kind != tool_pb2.AnswerFormat.KIND_JSON_SCHEMA:
        return {"type": kind}
    schema: Json = {"name": answer.name, "schema": orjson.loads(answer.schema_json or "{}")}
    if answer.description:
        schema["description"] = answer.description
    if answer.HasField("strict"):
        schema["strict"] = answer.strict
    return {"type": kind, "json_schema": schema}


def _tool_from(tool: AssistantTool, path: str) -> tool_pb2.Tool:
    if tool.type == "code_interpreter":
        raise UnsupportedValue(field=f"{path}.type", value=tool.type)
    if tool.type == "file_search":
        return tool_pb2.Tool(file_search=_search_from(tool.file_search or FileSearchSettings()))
    function = tool.function
    if function is None:
        raise MissingField(field=f"{path}.function")
    parameters = function.parameters
    return tool_pb2.Tool(
        function=tool_pb2.FunctionTool(
            name=function.name,
            description=function.description or "",
            parameters_json="" if parameters is None else orjson.dumps(parameters).decode(),
            strict=function.strict,
        )
    )


def _search_from(search: FileSearchSettings) -> tool_pb2.FileSearchTool:
    ranking = search.ranking_options or RankingOptions()
    return tool_pb2.FileSearchTool(
        max_results=search.max_num_results,
        ranker=ranking.ranker or "",
        score_threshold=ranking.score_threshold,
        filters_json="" if search.filters is None else orjson.dumps(search.filters).decode(),
    )


def _tool_object(tool: tool_pb2.Tool) -> Json:
    if tool.WhichOneof("tool") == "file_search":
        return {"type": "file_search", "file_search": _search_object(tool.file_search)}
    function = tool.function
    written: Json = {"name": function.name}
    if function.description:
        written["description"] = function.description
    if function.parameters_json:
        written["parameters"] = orjson.loads(function.parameters_json)
    if function.HasField("strict"):
        written["strict"] = function.strict
    return {"type": "function", "function": written}


def _search_object(search: tool_pb2.FileSearchTool) -> Json:
    written: Json = {}
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
