"""Conversion of the limits with which an operator loads a model."""

import pytest
from corral.inference.v1 import model_pb2 as model_pb

from inference_svc.models.memory_plan import Layout, RequestedLimits
from inference_svc.rpc.model_info import to_limits
from svc_kit.errors import InvalidField, UnsupportedField

CONFIGURED = RequestedLimits(slots=3, context_tokens=512, layout=Layout.STREAMS)


def test_unset_limits_are_the_configured_ones() -> None:
    """Each limit is replaced separately."""
    limits = model_pb.ModelLimits(slots=2, layout=model_pb.KV_LAYOUT_UNIFIED)

    assert to_limits(model_pb.ModelLimits(), CONFIGURED) == CONFIGURED
    assert to_limits(limits, CONFIGURED) == RequestedLimits(
        slots=2, context_tokens=512, layout=Layout.UNIFIED
    )


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (model_pb.ModelLimits(kv_bytes=1), UnsupportedField),
        (model_pb.ModelLimits(layout=9), InvalidField),  # type: ignore[arg-type]  # unknown value
    ],
)
def test_invalid_limits_are_rejected(limits: model_pb.ModelLimits, error: type[Exception]) -> None:
    """An output-only field, and an unknown layout."""
    with pytest.raises(error):
        to_limits(limits, CONFIGURED)
