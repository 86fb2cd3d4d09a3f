"""Search requests of vector stores: queries, filters, ranking options."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from corral.control.v1 import vector_store_search_pb2, vector_store_service_pb2
from pydantic import Field, Tag

from dialects.openai.resources.vector_stores import attribute_value
from dialects.shared.fields import BY_KIND, WireModel, validate
from dialects.shared.parameters import Ignored, Policy, Refused
from svc_kit.errors import InvalidField, InvalidType

_MAX_DEPTH = 16
"""Bounds the recursion here; the control service has a lower limit."""
_DEFAULT_RESULTS = 10
Query = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[str], Tag("~array")],
    BY_KIND,
]
Fraction = Annotated[float, Field(ge=0, le=1)]


class HybridSearch(WireModel):
    embedding_weight: Fraction = Field(description="Weight of vector search. Default: 0.7.")
    text_weight: Fraction = Field(description="Weight of text search. Default: 0.3.")


class SearchRankingOptions(WireModel):
    policy: ClassVar[Policy] = {"ranker": Ignored("there is one ranker", ("auto",))}
    score_threshold: Fraction | None = Field(None, description="The lowest score of a result.")
    hybrid_search: HybridSearch | None = Field(None, description="Weights of the two searches.")


class VectorSearchBody(WireModel):
    policy: ClassVar[Policy] = {
        "rewrite_query": Refused("queries are searched as they are", (False,))
    }

    query: Query = Field(description="A query, or up to 16 queries.")
    max_num_results: Annotated[int, Field(ge=1, le=50)] | None = Field(
        None, description="1 to 50. Default: 10."
    )
    filters: dict[str, Any] | None = Field(
        None, description="A condition on attributes: eq, ne, gt, gte, lt, lte, in, nin, and, or."
    )
    ranking_options: SearchRankingOptions | None = Field(None, description="How to rank results.")


class Comparison(WireModel):
    """A condition on one attribute."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: str
    value: Any


class Compound(WireModel):
    """Several conditions, combined."""

    type: Literal["and", "or"]
    filters: list[Any] = Field(min_length=1)


def search_request(
    store_id: str, fields: Mapping[str, Any]
) -> vector_store_service_pb2.SearchVectorStoreRequest:
    """Convert a body. Raises DomainErrors with the body's field names."""
    body = validate(VectorSearchBody, fields)
    return vector_store_service_pb2.SearchVectorStoreRequest(
        vector_store_id=store_id,
        queries=[body.query] if isinstance(body.query, str) else body.query,
        max_results=body.max_num_results or _DEFAULT_RESULTS,
        filter=None if body.filters is None else filter_to_proto(body.filters),
        ranking=ranking_to_proto(body.ranking_options),
    )


def ranking_to_proto(
    options: SearchRankingOptions | None,
) -> vector_store_search_pb2.SearchRanking | None:
    """Convert ranking options; None means the defaults."""
    if options is None:
        return None
    hybrid = options.hybrid_search
    return vector_store_search_pb2.SearchRanking(
        score_threshold=options.score_threshold,
        vector_weight=None if hybrid is None else hybrid.embedding_weight,
        text_weight=None if hybrid is None else hybrid.text_weight,
    )


def filter_to_proto(condition: object, depth: int = 1) -> vector_store_search_pb2.AttributeFilter:
    """Convert a condition. Raises DomainErrors that name `filters`."""
    if not isinstance(condition, dict):
        raise InvalidType(field="filters", expected="an object")
    if depth > _MAX_DEPTH:
        raise InvalidField(field="filters", problem="conditions are nested too deeply")
    if condition.get("type") in ("and", "or"):
        compound = validate(Compound, condition, "filters")
        return vector_store_search_pb2.AttributeFilter(
            compound=vector_store_search_pb2.CompoundFilter(
                junction=f"JUNCTION_{compound.type.upper()}",
                filters=[filter_to_proto(each, depth + 1) for each in compound.filters],
            )
        )
    return _comparison_to_proto(validate(Comparison, condition, "filters"))


def _comparison_to_proto(comparison: Comparison) -> vector_store_search_pb2.AttributeFilter:
    has_array = comparison.type in ("in", "nin")
    if has_array is not isinstance(comparison.value, list):
        expected = "an array" if has_array else "a string, a number or a boolean"
        raise InvalidType(field="filters.value", expected=expected)
    values = comparison.value if has_array else [comparison.value]
    return vector_store_search_pb2.AttributeFilter(
        comparison=vector_store_search_pb2.AttributeComparison(
            key=comparison.key,
            comparator=f"COMPARATOR_{comparison.type.upper()}",
            values=[attribute_value("filters.value", value) for value in values],
        )
    )
