"""Conversion of the limits with which an operator loads a model, and of problems of engines."""

import pytest
from corral.inference.v1 import model_pb2 as model_pb

from inference_svc.models.memory_plan import Layout, RequestedLimits
from inference_svc.rpc.model_info import to_limits, watched_model
from svc_kit.auth.principal import Principal, set_principal
from svc_kit.auth.scopes import Scope
from svc_kit.errors import InvalidField, UnsupportedField
from tests.unit.inference_svc.model_pool.test_upstreams import upstream_entry

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


@pytest.mark.parametrize(
    ("scope", "problem"),
    [
        (Scope.ADMIN_READ, "http://10.0.0.5: another vocabulary"),
        (Scope.GENERATE, "its engine cannot be used; operators see why"),
    ],
)
async def test_only_operators_see_what_an_engine_said(scope: Scope, problem: str) -> None:
    entry = upstream_entry()
    entry.resident.start_loading()
    entry.resident.fail("http://10.0.0.5: another vocabulary")
    set_principal(Principal(scopes=frozenset({scope}), key_id="k"))

    described = watched_model(entry)
    assert described.problem == problem
    assert len(described.upstream.endpoints) == (scope is Scope.ADMIN_READ)
    assert bool(described.upstream.tokenizer) == (scope is Scope.ADMIN_READ)
