"""Conversions shared by all servicers: times, durations, page requests, field masks."""

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
_ALL_FIELDS = "*"
_MAX_DURATION_S: Final = 10**9  # about 31 years, well within the range of timedelta


def check_mask(mask: FieldMask, changes: Message, editable: Collection[str]) -> FieldMask:
    """Return the paths to copy from `changes`; if the mask is empty, those of its set fields.

    `editable` are the fields that callers can change. Raises InvalidField for other ones.
    """
    if _ALL_FIELDS in mask.paths:
        return FieldMask(paths=editable)
    if not mask.paths:
        fields = (field.name for field, _ in changes.ListFields())
        return FieldMask(paths=[name for name in fields if name in editable])
    descriptor: Any = changes.DESCRIPTOR  # two classes, of which one is not typed
    for path in mask.paths:
        is_known = FieldMask(paths=[path]).IsValidForDescriptor(descriptor)
        if not is_known or path.split(".")[0] not in editable:
            raise InvalidField(field="update_mask", problem=f"'{path}' cannot be changed")
    return mask


def changed_fields(request: Any, editable: Collection[str]) -> set[str]:
    """The fields that an update changes, if they are fields of the request itself.

    Raises InvalidField for a mask with other fields than `editable`.
    """
    mask = check_mask(request.update_mask, request, editable)
    return {path.split(".")[0] for path in mask.paths}


def apply_mask(current: MessageT, changes: MessageT, mask: FieldMask) -> MessageT:
    """Return `current` with the paths of a checked mask replaced by those of `changes`.

    A path that is unset in `changes` is cleared, even if its parent messages are unset there.
    """
    source, result = type(current)(), type(current)()
    source.CopyFrom(changes)
    result.CopyFrom(current)
    for path in mask.paths:
        parent: Message = source
        for name in path.split(".")[:-1]:
            parent = getattr(parent, name)
            parent.SetInParent()
    mask.MergeMessage(source, result, replace_message_field=True, replace_repeated_field=True)
    return result


def is_newest_first(order: int) -> bool:
    """Convert a ListOrder. Raises InvalidField for an unknown one."""
    if order not in listing_pb2.ListOrder.values():
        raise InvalidField(field="order", problem=f"{order} is not a list order")
    return order != listing_pb2.LIST_ORDER_OLDEST_FIRST


class _ListRequest(Protocol):
    """A list request with all cursors."""

    page_size: int
    page_token: str
    after: str
    before: str
    order: Any


def page_request(request: _ListRequest) -> PageRequest:
    """Convert the paging fields of a list request. Raises InvalidField."""
    return PageRequest(
        request.page_size or DEFAULT_PAGE,
        request.page_token,
        request.after,
        is_newest_first(request.order),
        request.before,
    )


def to_timedelta(field: str, duration: Duration) -> timedelta:
    """Convert a duration. Raises InvalidField if it is longer than `_MAX_DURATION_S`."""
    if abs(duration.seconds) > _MAX_DURATION_S:
        problem = f"duration must be at most {_MAX_DURATION_S} seconds"
        raise InvalidField(field=field, problem=problem)
    return timedelta(seconds=duration.seconds, microseconds=duration.nanos // 1000)


def timestamp(time: datetime) -> Timestamp:
    """Convert a time."""
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def optional_timestamp(time: datetime | None) -> Timestamp | None:
    """Convert an optional time."""
    return None if time is None else timestamp(time)
