"""Items between protos and the domain, for conversations, responses and threads."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from corral.control.v1 import item_pb2 as pb
from corral.control.v1 import response_pb2

from control_svc.api.content_convert import content_from_pb, content_to_pb
from control_svc.api.convert import timestamp
from control_svc.domain.given_items import GivenItem
from control_svc.domain.items import Item, ItemStatus
from control_svc.domain.showing import Include, shown
from svc_kit.errors import InvalidField

_STATUS: Final = "STATUS_"
_INCLUDES: Final[Mapping[int, Include]] = {
    response_pb2.RESPONSE_INCLUDE_LOGPROBS: Include.LOGPROBS,
    response_pb2.RESPONSE_INCLUDE_FILE_SEARCH_RESULTS: Include.FILE_SEARCH_RESULTS,
    response_pb2.RESPONSE_INCLUDE_SEALED_REASONING: Include.SEALED_REASONING,
    response_pb2.RESPONSE_INCLUDE_INPUT_IMAGE_URLS: Include.INPUT_IMAGE_URLS,
}


def includes_of(values: Iterable[int]) -> frozenset[Include]:
    """What a caller wants to see. Raises InvalidField for what this release does not know."""
    found = set()
    for index, value in enumerate(values):
        known = _INCLUDES.get(value)
        if known is None:
            raise InvalidField(field=f"include[{index}]", problem=f"{value} is nothing to include")
        found.add(known)
    return frozenset(found)


def item_to_pb(item: Item) -> pb.Item:
    """An item with all that it has."""
    message = pb.Item(
        id=item.id,
        status=f"{_STATUS}{item.status.name}",
        create_time=timestamp(item.created_at),
    )
    content_to_pb(item.content, message)
    return message


def items_to_pb(items: Iterable[Item], include: Collection[Include]) -> list[pb.Item]:
    """Items as a caller sees them who asked for `include`."""
    return [item_to_pb(shown(item, include)) for item in items]


def given_item(message: pb.Item, field: str) -> GivenItem:
    """An item of a request, or the name of one. Raises InvalidField; `GivenItem.check` the rest."""
    kind = message.WhichOneof("content")
    if kind is None:
        return GivenItem(reference=message.id)
    return GivenItem(
        content=content_from_pb(message, field),
        id=message.id,
        status=_status(message.status, field),
    )


def given_items(messages: Sequence[pb.Item], field: str) -> tuple[GivenItem, ...]:
    """The items of a request. Raises InvalidField."""
    return tuple(given_item(message, f"{field}[{index}]") for index, message in enumerate(messages))


def _status(value: int, field: str) -> ItemStatus:
    if value == pb.Item.STATUS_UNSPECIFIED:
        return ItemStatus.COMPLETED
    known = pb.Item.Status.DESCRIPTOR.values_by_number.get(value)
    if known is None:
        raise InvalidField(field=f"{field}.status", problem=f"{value} is no status")
    return ItemStatus[known.name.removeprefix(_STATUS)]
