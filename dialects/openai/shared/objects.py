"""Building blocks of response objects: pages of lists, names of states, counts of tokens."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from typing_extensions import TypedDict

from dialects.openai.errors import ParamNames, openai_name
from dialects.shared.wire import From

Json = dict[str, Any]
ObjectT = TypeVar("ObjectT")
ShapeT = TypeVar("ShapeT")
DONE = b"data: [DONE]\n\n"
"""The last server-sent event of a stream that did not fail."""


def sse_data(payload: bytes) -> bytes:
    """A server-sent event without a name."""
    return b"data: %b\n\n" % payload


class ListPage(TypedDict, Generic[ShapeT]):
    object: Literal["list"]
    data: list[ShapeT]
    first_id: str | None
    last_id: str | None
    has_more: bool


def list_object(
    objects: Sequence[ObjectT], write: Callable[[ObjectT], ShapeT], next_page_token: str = ""
) -> ListPage[ShapeT]:
    """A page of a list, the last one without a token. `write` converts an object to JSON with an
    `id`."""
    data: list[Any] = [write(each) for each in objects]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": bool(next_page_token),
    }


class Deleted(TypedDict):
    """The confirmation that an object was deleted."""

    id: str
    object: str
    deleted: Literal[True]


def deleted_object(object_id: str, object_name: str) -> Deleted:
    """The confirmation. `object_name` is the value of `object`."""
    return {"id": object_id, "object": object_name, "deleted": True}


def enum_name(name: str, prefix: str) -> str:
    """Convert the name of a proto enum value to OpenAI's, as in STATE_FAILED to "failed"."""
    return name.removeprefix(prefix).lower()


def incomplete_details(owner: Any) -> Json | None:
    """The `incomplete_details` of a message with an `incomplete_reason`."""
    if not owner.incomplete_reason:
        return None
    name = type(owner).IncompleteReason.Name(owner.incomplete_reason)
    return {"reason": enum_name(name, "INCOMPLETE_REASON_")}


def by_callers_names(params: ParamNames) -> From:
    """The key of its name, which has names of fields: as the caller calls them."""
    return From(write=lambda names: [openai_name(name, params) for name in names])


class CachedTokens(TypedDict):
    """How many tokens of a prompt were in the cache."""

    cached_tokens: int


class ReasoningTokens(TypedDict):
    """How many tokens of an output were reasoning."""

    reasoning_tokens: int


def total_tokens(usage: Any) -> int:
    """The tokens of a response or a batch."""
    return int(usage.input_tokens + usage.output_tokens)


class TokenUsage(TypedDict):
    """The token counts of a response or a batch."""

    input_tokens: int
    input_tokens_details: Annotated[CachedTokens, From(".")]
    output_tokens: int
    output_tokens_details: Annotated[ReasoningTokens, From(".")]
    total_tokens: Annotated[int, From(".", total_tokens)]
