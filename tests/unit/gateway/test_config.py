"""The gateway's settings."""

from pathlib import Path

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


def test_the_environment_sets_lists_and_groups() -> None:
    """Lists are separated by commas, groups by two underscores."""
    settings = load_settings(
        GatewaySettings,
        environment={
            "CORRAL_GATEWAY_LISTEN": "127.0.0.1:0",
            "CORRAL_GATEWAY_ALLOWED_HOSTS": "a.example,b.example",
            "CORRAL_GATEWAY_INFERENCE_TLS__SERVER_NAME": "inference",
        },
    )

    assert settings.listen == "127.0.0.1:0"
    assert settings.allowed_hosts == ("a.example", "b.example")
    assert settings.inference_tls is not None
    assert settings.inference_tls.server_name == "inference"


def test_keys_are_read_from_the_file(tmp_path: Path) -> None:
    """An array of tables under [gateway]."""
    path = tmp_path / "corral.toml"
    digest = "0" * 64
    path.write_text(f'[[gateway.keys]]\nname = "k"\nsha256 = "{digest}"\n', encoding="utf-8")

    settings = load_settings(GatewaySettings, toml=path, environment={})

    assert settings.keys[0].name == "k"


def test_every_problem_is_reported_at_once() -> None:
    """In one message."""
    with pytest.raises(StartupError) as caught:
        load_settings(
            GatewaySettings,
            environment={"CORRAL_GATEWAY_LISTN": "x", "CORRAL_GATEWAY_BODY_LIMIT_BYTES": "5"},
        )

    assert "CORRAL_GATEWAY_LISTN" in str(caught.value)
    assert "CORRAL_GATEWAY_BODY_LIMIT_BYTES" in str(caught.value)
