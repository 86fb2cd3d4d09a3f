"""Functions, file_search and output formats of assistants, runs and responses, as protos."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from corral.control.v1 import tool_pb2
from pydantic import Field

from dialects.shared.fields import WireModel
from dialects.shared.json_body import json_text

ToolMode = Literal["none", "auto", "required"]
TOOL_MODES: Final[dict[tool_pb2.ToolSelection.Mode, ToolMode]] = {
    tool_pb2.ToolSelection.MODE_UNSPECIFIED: "auto",
    tool_pb2.ToolSelection.MODE_NONE: "none",
    tool_pb2.ToolSelection.MODE_AUTO: "auto",
    tool_pb2.ToolSelection.MODE_REQUIRED: "required",
}


class RankingOptions(WireModel):
    """How search results are ranked."""

    ranker: str | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class FileSearchSettings(WireModel):
    max_num_results: Annotated[int, Field(ge=1, le=50)] | None = None
    ranking_options: RankingOptions | None = None
    filters: dict[str, Any] | None = Field(
        None, description="A condition on attributes, as in searches of vector stores."
    )


def function_to_proto(function: Any) -> tool_pb2.FunctionTool:
    """Convert a function: an object with name, description, parameters and strict."""
    return tool_pb2.FunctionTool(
        name=function.name,
        description=function.description or "",
        parameters_json=json_text(function.parameters),
        strict=function.strict,
    )


def search_to_proto(
    search: FileSearchSettings, store_ids: Sequence[str] = ()
) -> tool_pb2.FileSearchTool:
    ranking = search.ranking_options or RankingOptions()
    return tool_pb2.FileSearchTool(
        vector_store_ids=store_ids,
        max_results=search.max_num_results,
        ranker=ranking.ranker or "",
        score_threshold=ranking.score_threshold,
        filters_json=json_text(search.filters),
    )


def schema_to_proto(schema: Any, kind: str = "json_schema") -> tool_pb2.AnswerFormat:
    """Convert an output format: an object with name, description, schema_ and strict."""
    return tool_pb2.AnswerFormat(
        kind=f"KIND_{kind.upper()}",
        name=schema.name or "",
        description=schema.description or "",
        schema_json=json_text(schema.schema_),
        strict=schema.strict,
    )
