"""The scope of every RPC."""

import pytest
from corral.inference.v1 import engine_service_pb2, inference_service_pb2

from svc_kit.auth.scopes import GRANTABLE, METHOD_SCOPES, Scope, check_scopes_cover
from svc_kit.lifecycle import StartupError
from tests.support.tenancy import list_services

INFERENCE = inference_service_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
ENGINE = engine_service_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name

CONTROL = [service.full_name for service in list_services()]


@pytest.mark.parametrize("service", [INFERENCE, ENGINE, *CONTROL])
def test_every_method_of_our_services_has_a_scope(service: str) -> None:
    """No RPC is missing in the table."""
    check_scopes_cover([service])


def test_the_error_for_a_missing_scope_names_the_method() -> None:
    """It is raised when a server is built."""
    scopes = {name: scope for name, scope in METHOD_SCOPES.items() if not name.endswith("/Abort")}

    with pytest.raises(StartupError, match="EngineService/Abort"):
        check_scopes_cover([ENGINE], scopes)


def test_the_engine_service_requires_the_scope_admin() -> None:
    """Except methods for a caller's own requests."""
    rows = {name: scope for name, scope in METHOD_SCOPES.items() if name.startswith(f"/{ENGINE}/")}
    open_to_callers = {name.rpartition("/")[2] for name, s in rows.items() if s is not Scope.ADMIN}

    assert open_to_callers == {"Abort", "ListRequests"}


def test_only_health_is_public() -> None:
    """Every other method authenticates the caller."""
    public = {name for name, scope in METHOD_SCOPES.items() if scope is Scope.PUBLIC}

    assert {name.split("/")[1] for name in public} == {"grpc.health.v1.Health"}


def test_keys_cannot_be_granted_pseudo_scopes() -> None:
    """`public` and `known` describe methods; `service` is for Corral's services."""
    assert {Scope.INFERENCE, Scope.ADMIN} == GRANTABLE
