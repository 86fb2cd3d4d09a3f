"""Building blocks of response objects: pages of lists, names of states, timestamps, numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dialects.openai.errors import ParamNames, openai_name
from dialects.shared.wire import round_float32

Json = dict[str, Any]
ObjectT = TypeVar("ObjectT")
DONE = b"data: [DONE]\n\n"
"""The last server-sent event of a stream that did not fail."""


def sse_data(payload: bytes) -> bytes:
    """A server-sent event without a name."""
    return b"data: %b\n\n" % payload


def list_object(
    objects: Sequence[ObjectT],
    write: Callable[[ObjectT], Mapping[str, Any]],
    next_page_token: str = "",
) -> Json:
    """A page of a list, the last one without a token. `write` converts an object to JSON with an
    `id`."""
    data = [write(each) for each in objects]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": bool(next_page_token),
    }


def deleted_object(object_id: str, object_name: str) -> Json:
    """The confirmation that an object was deleted. `object_name` is the value of `object`."""
    return {"id": object_id, "object": object_name, "deleted": True}


def enum_name(name: str, prefix: str) -> str:
    """Convert the name of a proto enum value to OpenAI's, as in STATE_FAILED to "failed"."""
    return name.removeprefix(prefix).lower()


def state_name(resource: Any) -> str:
    """The `status` of a message with a `state`."""
    return enum_name(type(resource).State.Name(resource.state), "STATE_")


def incomplete_details(owner: Any) -> Json | None:
    """The `incomplete_details` of a message with an `incomplete_reason`."""
    if not owner.incomplete_reason:
        return None
    name = type(owner).IncompleteReason.Name(owner.incomplete_reason)
    return {"reason": enum_name(name, "INCOMPLETE_REASON_")}


def ignored_object(names: Iterable[str], params: ParamNames) -> Json:
    """The `ignored_parameters` of a response or a run, if there are any, by the caller's names."""
    ignored = [openai_name(name, params) for name in names]
    return {"ignored_parameters": ignored} if ignored else {}


def token_usage(usage: Any) -> Json:
    """The token counts of a response or a batch."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def optional_seconds(message: Any, field: str) -> int | None:
    """A timestamp in unix seconds, None if it is not set."""
    return getattr(message, field).seconds if message.HasField(field) else None


def optional_float(message: Any, field: str) -> float | None:
    """A 32-bit float, None if it is not set."""
    return round_float32(getattr(message, field)) if message.HasField(field) else None
