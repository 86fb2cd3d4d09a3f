"""What all servicers share: the caller's project, page requests and field masks."""

from collections.abc import Collection
from typing import Any, TypeVar

import grpc
from corral.control.v1 import listing_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from control_svc.base.pagination import DEFAULT_PAGE, PageRequest
from svc_kit.auth.principal import current_principal
from svc_kit.errors import InvalidField

MessageT = TypeVar("MessageT", bound=Message)
Context = grpc.aio.ServicerContext[object, object]
_ALL_FIELDS = "*"


def caller_project() -> str:
    return current_principal().project


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


def changed_values(request: Any, *fixed: str) -> dict[str, Any]:
    """The values that an update changes, if they are fields of the request itself, by field; of one
    that is cleared its default. All but `fixed` can be changed; raises InvalidField for a mask with
    others.
    """
    editable = {*request.DESCRIPTOR.fields_by_name} - {*fixed, "update_mask"}
    mask = check_mask(request.update_mask, request, editable)
    names = {path.split(".")[0] for path in mask.paths}
    return {name: getattr(request, name) for name in names}


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


def page_request(
    request: Any, default_size: int = DEFAULT_PAGE, *, newest_first: bool = True
) -> PageRequest:
    """Convert the paging fields of a list request. Raises InvalidField.

    `newest_first` is the order of lists whose requests have none. Lists without cursors have page
    tokens only.
    """
    has_order = "order" in request.DESCRIPTOR.fields_by_name
    return PageRequest(
        request.page_size or default_size,
        request.page_token,
        getattr(request, "after", ""),
        is_newest_first(request.order) if has_order else newest_first,
        getattr(request, "before", ""),
    )
