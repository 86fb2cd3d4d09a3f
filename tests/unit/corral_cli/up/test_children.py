"""What the services are given to start with."""

from pathlib import Path

from corral_cli.up.children import a_service, as_variables
from svc_kit.network import Address


def test_settings_become_variables() -> None:
    """Groups are joined with two underscores, lists are JSON, everything else is text."""
    overrides = {
        "listen": "127.0.0.1:1",
        "models": ["a.gguf", "b=hf:x/y/z.gguf"],
        "data_dir": Path("/data"),
        "engine.slots": 4,
    }

    assert as_variables("CORRAL_INFERENCE_", overrides) == {
        "CORRAL_INFERENCE_LISTEN": "127.0.0.1:1",
        "CORRAL_INFERENCE_MODELS": '["a.gguf", "b=hf:x/y/z.gguf"]',
        "CORRAL_INFERENCE_DATA_DIR": "/data",
        "CORRAL_INFERENCE_ENGINE__SLOTS": "4",
    }


def test_a_service_is_started_by_this_command() -> None:
    """The same interpreter, the operator's configuration file, and the end of the lifeline."""
    service = a_service(
        "gateway",
        variables={"CORRAL_GATEWAY_LISTEN": "127.0.0.1:2"},
        config=Path("corral.toml"),
        management=Address("127.0.0.1", 3),
        stop_patience_s=1,
    )

    assert list(service.command(7))[1:] == [
        *("-P", "-m", "corral_cli", "serve", "gateway"),
        *("--config", "corral.toml", "--lifeline", "7"),
    ]
    assert (service.environment or {})["CORRAL_GATEWAY_LISTEN"] == "127.0.0.1:2"
