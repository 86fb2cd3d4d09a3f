"""The gateway's settings."""

import pytest

from gateway.config import GatewaySettings
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import load_settings


def test_defaults() -> None:
    """Loopback addresses and no keys."""
    settings = load_settings(GatewaySettings, environment={})

    assert settings.listen == "127.0.0.1:8080"
    assert settings.inference_target == "127.0.0.1:50051"
    assert (settings.keys, settings.allowed_hosts, settings.allowed_origins) == ((), (), ())
    assert not settings.allow_keyless


def test_the_inference_service_may_have_replicas() -> None:
    target = "localhost:1, 127.0.0.1:2"
    settings = load_settings(
        GatewaySettings, environment={"CORRAL_GATEWAY_INFERENCE_TARGET": target}
    )

    assert settings.inference_target == "127.0.0.1:1,127.0.0.1:2"


def test_the_name_of_replicas_is_one_of_the_system() -> None:
    """Calls of operators ask no other name server."""
    environment = {"CORRAL_GATEWAY_INFERENCE_TARGET": "dns://10.0.0.53/inference:50051"}
    with pytest.raises(StartupError, match=r"INFERENCE_TARGET: .* write dns:///NAME:PORT"):
        load_settings(GatewaySettings, environment=environment)
