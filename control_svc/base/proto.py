"""Conversions that all servicers share: times, durations, page requests, field masks."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeVar

from corral.control.v1 import listing_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from control_svc.base.pagination import DEFAULT_PAGE, PageRequest
from svc_kit.errors import InvalidField

MessageT = TypeVar("MessageT", bound=Message)
_EVERYTHING = "*"


def check_mask(mask: FieldMask, changes: Message, editable: Collection[str]) -> FieldMask:
    """The paths to take from `changes`; without any, those of what is set in it.

    `editable` are the fields of the resource that callers change. Raises InvalidField.
    """
    if _EVERYTHING in mask.paths:
        return FieldMask(paths=editable)
    if not mask.paths:
        fields = (field.name for field, _ in changes.ListFields())
        return FieldMask(paths=[name for name in fields if name in editable])
    descriptor: Any = changes.DESCRIPTOR  # of one of two classes, only one of which is typed
    for path in mask.paths:
        is_known = FieldMask(paths=[path]).IsValidForDescriptor(descriptor)
        if not is_known or path.split(".")[0] not in editable:
            raise InvalidField(field="update_mask", problem=f"'{path}' cannot be changed")
    return mask


def apply_mask(there: MessageT, changes: MessageT, mask: FieldMask) -> MessageT:
    """What there is, with the paths of a checked mask taken from `changes`.

    A named field that is unset in `changes` is cleared, also where the messages around it are unset
    there.
    """
    source, result = type(there)(), type(there)()
    source.CopyFrom(changes)
    result.CopyFrom(there)
    for path in mask.paths:
        around: Message = source
        for step in path.split(".")[:-1]:
            around = getattr(around, step)
            around.SetInParent()
    mask.MergeMessage(source, result, replace_message_field=True, replace_repeated_field=True)
    return result


def is_newest_first(order: int) -> bool:
    """Raises InvalidField for an order that this release does not know."""
    if order not in listing_pb2.ListOrder.values():
        raise InvalidField(field="order", problem=f"{order} is no order")
    return order != listing_pb2.LIST_ORDER_OLDEST_FIRST


class _ListRequest(Protocol):
    """What requests of lists have that take every cursor."""

    page_size: int
    page_token: str
    after: str
    before: str
    order: Any


def page_request(request: _ListRequest) -> PageRequest:
    """What a caller asks of a list. Raises InvalidField."""
    return PageRequest(
        request.page_size or DEFAULT_PAGE,
        request.page_token,
        request.after,
        is_newest_first(request.order),
        request.before,
    )


def to_timedelta(field: str, duration: Duration) -> timedelta:
    """Raises InvalidField for one that Python cannot hold."""
    if abs(duration.seconds) > _MOST_SECONDS:
        raise InvalidField(field=field, problem="it is longer than anybody lives")
    return timedelta(seconds=duration.seconds, microseconds=duration.nanos // 1000)


def timestamp(time: datetime) -> Timestamp:
    """A time as protos have it."""
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def optional_timestamp(time: datetime | None) -> Timestamp | None:
    """A time that may not have come, as protos have it."""
    return None if time is None else timestamp(time)


_MOST_SECONDS: Final = 10**9  # three decades; more would leave the range of Python's own type
