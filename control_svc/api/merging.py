"""Partial edits by a field mask: what a request names, over what there is."""

from collections.abc import Collection
from typing import Any, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

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


def merged(there: MessageT, changes: MessageT, mask: FieldMask) -> MessageT:
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
