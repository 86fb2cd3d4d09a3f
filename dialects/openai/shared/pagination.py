"""Query parameters of lists: `limit`, `order`, and cursors in one or both directions."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from corral.control.v1 import listing_pb2
from pydantic import Field

from dialects.openai.shared.objects import Json
from dialects.shared.fields import WireModel, parse_integer, validate

MAX_PAGE = 100


class ListQuery(WireModel):
    """The query of a list with a forward cursor."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] | None = None
    order: Literal["asc", "desc"] | None = None
    after: str | None = None


class PageQuery(ListQuery):
    """The query of a list with cursors in both directions."""

    before: str | None = None


QueryT = TypeVar("QueryT", bound=WireModel)


def parse_page_query(model: type[QueryT], query: Mapping[str, str]) -> QueryT:
    """Validate a query. Unknown and empty parameters are ignored. Raises DomainErrors."""
    known: dict[str, Any] = {name: query[name] for name in model.model_fields if query.get(name)}
    if "limit" in known:
        known["limit"] = parse_integer(known["limit"])
    return validate(model, known)


def page_fields(query: ListQuery) -> Json:
    """Convert a query to fields of a list request; newest first unless `order` is "asc"."""
    is_oldest_first = query.order == "asc"
    fields: Json = {
        "page_size": query.limit or 0,
        "after": query.after or "",
        "order": listing_pb2.LIST_ORDER_OLDEST_FIRST
        if is_oldest_first
        else listing_pb2.LIST_ORDER_NEWEST_FIRST,
    }
    if isinstance(query, PageQuery):
        fields["before"] = query.before or ""
    return fields


def parse_page_fields(query: Mapping[str, str], model: type[ListQuery] = PageQuery) -> Json:
    """Convert a query without filters to fields of a list request. Raises DomainErrors."""
    return page_fields(parse_page_query(model, query))
