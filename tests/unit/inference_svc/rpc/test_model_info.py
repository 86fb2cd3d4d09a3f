"""Sizes that an operator asks to load a model with, and how they are shown."""

import pytest
from corral.inference.v1 import model_pb2 as model_pb

from inference_svc.models.memory_plan import Layout, RequestedLimits
from inference_svc.rpc.model_info import to_limits
from svc_kit.errors import InvalidField, OutOfRange, UnsupportedField

BEFORE = RequestedLimits(slots=3, context_tokens=512, layout=Layout.STREAMS)


def test_what_is_not_asked_for_stays() -> None:
    """Each size by itself, the layout too."""
    asked = model_pb.ModelLimits(slots=2, layout=model_pb.KV_LAYOUT_UNIFIED)

    assert to_limits(model_pb.ModelLimits(), BEFORE) == BEFORE
    assert to_limits(asked, BEFORE) == RequestedLimits(
        slots=2, context_tokens=512, layout=Layout.UNIFIED
    )


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (model_pb.ModelLimits(slots=0), OutOfRange),
        (model_pb.ModelLimits(kv_bytes=1), UnsupportedField),
        (model_pb.ModelLimits(layout=9), InvalidField),  # type: ignore[arg-type]  # of a later release
    ],
)
def test_what_cannot_be_had_is_refused(asked: model_pb.ModelLimits, error: type[Exception]) -> None:
    """Before anything is loaded."""
    with pytest.raises(error):
        to_limits(asked, BEFORE)
