"""Queries of lists with cursors in both directions."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from corral.control.v1 import listing_pb2
from pydantic import Field

from openai_wire.shared.fields import WireModel, number_of, validated

MAX_PAGE = 100


class PageQuery(WireModel):
    """The query of a list."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] | None = None
    order: Literal["asc", "desc"] | None = None
    after: str | None = None
    before: str | None = None


class PageFields(TypedDict):
    """What every request of a list has."""

    page_size: int
    after: str
    before: str
    order: listing_pb2.ListOrder


QueryT = TypeVar("QueryT", bound=PageQuery)


def page_query(model: type[QueryT], query: Mapping[str, str]) -> QueryT:
    """A checked query. Parameters that are not known are ignored. Raises DomainErrors."""
    known: dict[str, Any] = {name: query[name] for name in model.model_fields if query.get(name)}
    if "limit" in known:
        known["limit"] = number_of(known["limit"])
    return validated(model, known)


def page_fields(request: PageQuery) -> PageFields:
    """The same for a request of the control service."""
    is_oldest_first = request.order == "asc"
    return {
        "page_size": request.limit or 0,
        "after": request.after or "",
        "before": request.before or "",
        "order": listing_pb2.LIST_ORDER_OLDEST_FIRST
        if is_oldest_first
        else listing_pb2.LIST_ORDER_NEWEST_FIRST,
    }
