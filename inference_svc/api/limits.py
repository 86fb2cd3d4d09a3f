"""The sizes that an operator asks to load a model with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from corral.inference.v1 import model_pb2 as model_pb

from inference_svc.api.checks import check_range
from inference_svc.models.sizing import Layout, RequestedLimits
from svc_kit.errors import InvalidField, UnsupportedField

_LIMITS: Mapping[Any, tuple[int, int]] = {
    "slots": (1, 256),
    "context_tokens": (256, 2**24),
    "batch_tokens": (32, 65536),
    "threads": (1, 1024),
}
LAYOUTS: Mapping[Layout, model_pb.KvLayout] = {
    Layout.AUTO: model_pb.KV_LAYOUT_UNSPECIFIED,
    Layout.STREAMS: model_pb.KV_LAYOUT_STREAMS,
    Layout.UNIFIED: model_pb.KV_LAYOUT_UNIFIED,
}


def to_limits(asked: model_pb.ModelLimits, otherwise: RequestedLimits) -> RequestedLimits:
    """The sizes to load a model with; what is not asked for stays.

    Raises `OutOfRange`, `InvalidField`, or `UnsupportedField` for a size that follows from the
    others.
    """
    if asked.HasField("kv_bytes"):
        raise UnsupportedField(field="limits.kv_bytes")
    given: dict[str, Any] = {}
    for name, (minimum, maximum) in _LIMITS.items():
        if asked.HasField(name):
            value = getattr(asked, name)
            check_range(f"limits.{name}", value, minimum, maximum)
            given[name] = value
    if asked.layout:
        given["layout"] = _layout(asked.layout)
    return replace(otherwise, **given)


def _layout(asked: int) -> Layout:
    for layout, number in LAYOUTS.items():
        if asked == number:
            return layout
    raise InvalidField(field="limits.layout", problem=f"unknown layout {asked}")
