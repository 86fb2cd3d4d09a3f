"""Requests of searches: queries, filters, ranking options."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from corral.control.v1 import vector_store_search_pb2, vector_store_service_pb2
from pydantic import Field, Tag

from openai_wire.resources.vector_stores import attribute_value
from openai_wire.shared.fields import BY_KIND, WireModel, validated, without_neutral
from svc_kit.errors import InvalidField, InvalidType

_MAX_DEPTH = 16
"""The service's own limit is lower; this keeps hostile bodies from being walked."""
_DEFAULT_RESULTS = 10
Query = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[str], Tag("~array")],
    BY_KIND,
]
Share = Annotated[float, Field(ge=0, le=1)]


class HybridSearch(WireModel):
    """How much meaning and words count."""

    embedding_weight: Share = Field(description="Of the meaning, 0 to 1. Default: 0.7.")
    text_weight: Share = Field(description="Of the words, 0 to 1. Default: 0.3.")


class RankingOptions(WireModel):
    """How what is found is ordered."""

    ranker: Literal["auto", "none", "default-2024-11-15", "default_2024_08_21"] | None = Field(
        None, description="Accepted; there is one way to rank."
    )
    score_threshold: Share | None = Field(None, description="Leaves out what scores less.")
    hybrid_search: HybridSearch | None = Field(None, description="How much each half counts.")


class VectorSearchBody(WireModel):
    """A search of a vector store."""

    query: Query = Field(description="A question, or up to 16.")
    max_num_results: Annotated[int, Field(ge=1, le=50)] | None = Field(
        None, description="1 to 50. Default: 10."
    )
    filters: dict[str, Any] | None = Field(
        None, description="A condition on attributes: eq, ne, gt, gte, lt, lte, in, nin, and, or."
    )
    ranking_options: RankingOptions | None = Field(None, description="How to order.")


class Comparison(WireModel):
    """A condition on one attribute."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: str
    value: Any


class Compound(WireModel):
    """Several conditions."""

    type: Literal["and", "or"]
    filters: list[Any] = Field(min_length=1)


class _OneComparison(WireModel):
    filters: Comparison


class _OneCompound(WireModel):
    filters: Compound


def search_request(
    store_id: str, fields: Mapping[str, Any]
) -> vector_store_service_pb2.SearchVectorStoreRequest:
    """The search that a body asks for. Raises DomainErrors with the body's field names."""
    body = validated(VectorSearchBody, without_neutral(fields, {"rewrite_query": (False,)}))
    return vector_store_service_pb2.SearchVectorStoreRequest(
        vector_store_id=store_id,
        queries=[body.query] if isinstance(body.query, str) else body.query,
        max_results=body.max_num_results or _DEFAULT_RESULTS,
        filter=None if body.filters is None else filter_message(body.filters),
        ranking=ranking_message(body.ranking_options),
    )


def ranking_message(
    options: RankingOptions | None,
) -> vector_store_search_pb2.SearchRanking | None:
    """How to order; None: by the defaults."""
    if options is None:
        return None
    hybrid = options.hybrid_search
    return vector_store_search_pb2.SearchRanking(
        score_threshold=options.score_threshold,
        vector_weight=None if hybrid is None else hybrid.embedding_weight,
        text_weight=None if hybrid is None else hybrid.text_weight,
    )


def filter_message(condition: object, depth: int = 1) -> vector_store_search_pb2.AttributeFilter:
    """A condition as clients write it. Raises DomainErrors that name `filters`."""
    if not isinstance(condition, dict):
        raise InvalidType(field="filters", expected="an object")
    if depth > _MAX_DEPTH:
        raise InvalidField(field="filters", problem="conditions stand too deep")
    if condition.get("type") in ("and", "or"):
        compound = validated(_OneCompound, {"filters": condition}).filters
        return vector_store_search_pb2.AttributeFilter(
            compound=vector_store_search_pb2.CompoundFilter(
                junction=f"JUNCTION_{compound.type.upper()}",
                filters=[filter_message(each, depth + 1) for each in compound.filters],
            )
        )
    return _comparison_message(validated(_OneComparison, {"filters": condition}).filters)


def _comparison_message(comparison: Comparison) -> vector_store_search_pb2.AttributeFilter:
    several = comparison.type in ("in", "nin")
    if several is not isinstance(comparison.value, list):
        expected = "an array" if several else "a string, a number or a boolean"
        raise InvalidType(field="filters.value", expected=expected)
    values = comparison.value if several else [comparison.value]
    return vector_store_search_pb2.AttributeFilter(
        comparison=vector_store_search_pb2.AttributeComparison(
            key=comparison.key,
            comparator=f"COMPARATOR_{comparison.type.upper()}",
            values=[attribute_value("filters.value", value) for value in values],
        )
    )
