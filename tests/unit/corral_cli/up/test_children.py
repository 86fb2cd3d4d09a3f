"""Commands and environment of the services."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral_cli.up.children import environment_variables, lock_of_children, make_service
from svc_kit.network import Address


def test_settings_become_environment_variables() -> None:
    """Groups are joined with two underscores; lists are JSON."""
    overrides = {
        "listen": "127.0.0.1:1",
        "models": ["a.gguf", "b=hf:x/y/z.gguf"],
        "data_dir": Path("/data"),
        "engine.slots": 4,
    }

    assert environment_variables("CORRAL_INFERENCE_", overrides) == {
        "CORRAL_INFERENCE_LISTEN": "127.0.0.1:1",
        "CORRAL_INFERENCE_MODELS": '["a.gguf", "b=hf:x/y/z.gguf"]',
        "CORRAL_INFERENCE_DATA_DIR": "/data",
        "CORRAL_INFERENCE_ENGINE__SLOTS": "4",
    }


async def never() -> bool:
    """A service that is not ready."""
    return False


def test_the_command_has_the_configuration_file_and_the_lifeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The environment has the overrides, and not systemd's socket: `corral up` is its service."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    service = make_service(
        "gateway-2",
        "gateway",
        variables={"CORRAL_GATEWAY_LISTEN": "127.0.0.1:2"},
        config=Path("corral.toml"),
        management=Address("127.0.0.1", 3),
        is_ready=never,
        stop_timeout_s=1,
    )

    assert list(service.command(7))[1:] == [
        *("-P", "-m", "corral_cli", "serve", "gateway"),
        *("--config", "corral.toml", "--lifeline", "7"),
    ]
    environment = service.environment or {}
    assert environment["CORRAL_GATEWAY_LISTEN"] == "127.0.0.1:2"
    assert environment["GRPC_VERBOSITY"] == os.environ.get("GRPC_VERBOSITY", "NONE")
    assert "NOTIFY_SOCKET" not in environment


def test_the_children_of_a_killed_supervisor_are_waited_for(tmp_path: Path) -> None:
    """Until the last one has ended, they use the ports and the data. A lock that nobody holds is
    taken at once."""
    reports: list[str] = []
    with lock_of_children(tmp_path, reports.append) as inherited:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=(inherited,),
        )
    assert child.stdin is not None

    def end_child(report: str) -> None:
        reports.append(report)
        child.communicate()

    with lock_of_children(tmp_path, end_child):
        assert child.returncode == 0

    with lock_of_children(tmp_path, reports.append):
        assert reports == ["waiting for the services of a `corral up` that was killed"]
