"""The scope of every RPC."""

import pytest
from corral.inference.v1 import engine_service_pb2

from svc_kit.auth.principal import Principal
from svc_kit.auth.scopes import (
    ALL_SCOPES,
    GRANTABLE,
    Scope,
    check_scopes,
)
from svc_kit.lifecycle import StartupError
from tests.support.rpc_servers import add_service_without_scopes
from tools.rpc_methods import METHODS

ENGINE = engine_service_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name
SCOPES = {path: options.scope for path, options in METHODS.items()}


def test_the_error_for_a_missing_scope_names_the_method() -> None:
    """That all RPCs of Corral have one is seen when `tools.rpc_methods` is imported."""
    with pytest.raises(StartupError, match=r"/tests\.BareService/Call has no scope"):
        check_scopes([ENGINE, add_service_without_scopes()])


def test_the_engine_service_requires_the_scope_admin() -> None:
    """Except methods for a caller's own requests."""
    rows = {name: scope for name, scope in SCOPES.items() if name.startswith(f"/{ENGINE}/")}
    for_operators = (Scope.ADMIN, Scope.ADMIN_READ)
    open_to_callers = {
        name.rpartition("/")[2] for name, s in rows.items() if s not in for_operators
    }

    assert open_to_callers == {"Abort", "ListRequests", "ListSessions"}


def test_only_health_is_public() -> None:
    """Every other method authenticates the caller."""
    public = {name for name, scope in SCOPES.items() if scope is Scope.PUBLIC}

    assert {name.split("/")[1] for name in public} == {"grpc.health.v1.Health"}


def test_keys_cannot_be_granted_pseudo_scopes() -> None:
    """`public` and `known` describe methods; `service` is for Corral's services."""
    assert {scope.value for scope in GRANTABLE} == {
        *("generate", "files", "files_read", "read", "inference", "admin_read", "admin")
    }


def test_the_scopes_inference_and_admin_include_all_others() -> None:
    """They are those that keys of earlier releases have."""
    for scope in {*SCOPES.values()} - {Scope.SERVICE}:
        assert Principal(scopes=ALL_SCOPES, key_id="k").has(scope), scope


@pytest.mark.parametrize(
    ("granted", "allowed"),
    [
        ("generate", "InferenceService/Chat InferenceService/ListModels"),
        (
            "files",
            "FileService/CreateFile FileService/GetFile VectorStoreService/SearchVectorStore",
        ),
        ("read", "FileService/DownloadFile RunService/GetRun ResponseService/WatchResponse"),
        (
            "admin_read",
            "KeyService/ListKeys EngineService/GetLoad UsageService/ListUsage"
            " InferenceService/ListModels EngineService/ListRequests",
        ),
    ],
)
def test_a_narrow_scope_allows_its_methods_and_no_others(granted: str, allowed: str) -> None:
    principal = Principal(scopes=frozenset({granted}), key_id="k")
    names = {name.partition(".v1.")[2] for name, s in SCOPES.items() if principal.has(s)}
    writes = ("Create", "Delete", "Update", "Chat", "Generate", "Revoke", "Cancel", "Drain")

    assert names >= {*allowed.split()}
    if granted.endswith("read"):
        assert not [name for name in names if name.partition("/")[2].startswith(writes)]
    elif granted == "files":
        assert {name.partition("/")[0] for name in names if "/" in name} <= {
            *("FileService", "UploadService", "VectorStoreService", "VectorStoreFileService"),
            *("Health", "ServerReflection"),
        }
    else:
        assert {name.partition("/")[0] for name in names} <= {
            *("InferenceService", "Health", "ServerReflection", ""),
        }
