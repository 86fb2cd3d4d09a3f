"""`corral doctor`: what it finds on machines where something is wrong."""

import asyncio
import json
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry

from control_svc.config import ControlSettings
from corral_cli.__main__ import cli
from corral_cli.doctor import installation_checks, machine_checks
from corral_cli.doctor.findings import Finding, Level
from corral_cli.up.up_lock import LOCK_NAME, Running, read_running, write_addresses
from gateway.config import GatewaySettings
from inference_svc.config import InferenceSettings
from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.local_files import lock_folder
from svc_kit.management import ManagementServer
from svc_kit.metrics import ProcessMetrics
from svc_kit.network import Address
from svc_kit.settings.checks import Listener
from svc_kit.settings.groups import load_settings

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def write_certificate(folder: Path, end: datetime) -> tuple[Path, Path]:
    """Write a self-signed certificate that is valid until `end`, and its key."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.NameAttribute(NameOID.COMMON_NAME, "x"),
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([name]))
        .issuer_name(x509.Name([name]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(end - timedelta(days=365))
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    path, key_path = folder / "tls.crt", folder / "tls.key"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    key_path.chmod(0o600)
    return path, key_path


@pytest.mark.parametrize(
    ("days", "level", "text"),
    [
        (90, Level.OK, "is valid for 90 days"),
        (20, Level.WARNING, "is valid for 20 days"),
        (-1, Level.ERROR, "expired on 2029-12-31"),
    ],
)
def test_certificates_are_reported_before_they_expire(
    tmp_path: Path, days: int, level: Level, text: str
) -> None:
    """Three weeks before, as a warning."""
    path, key = write_certificate(tmp_path, NOW + timedelta(days=days))

    finding = installation_checks.check_certificate("gateway", path, key, NOW)

    assert (finding.level, text in finding.message) == (level, True)


def test_a_certificate_with_the_key_of_another_is_an_error(tmp_path: Path) -> None:
    """A server would not start with it, or not load it again."""
    (tmp_path / "other").mkdir()
    path, _ = write_certificate(tmp_path, NOW + timedelta(days=90))
    _, other_key = write_certificate(tmp_path / "other", NOW)
    tables = {"tls": {"certificate_file": path, "key_file": other_key}}
    settings = load_settings(GatewaySettings, overrides=tables)

    (finding,) = installation_checks.check_certificates("gateway", settings, NOW)

    assert finding.level is Level.ERROR
    assert "cannot be used" in finding.message


def test_a_port_is_an_error_only_if_another_program_has_it() -> None:
    """`corral doctor` is also run beside a running Corral."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        overrides = {"listen": listen, "management_listen": "none"}
        settings = load_settings(GatewaySettings, overrides=overrides)
        running = Running("process 1", {("gateway", "listen"): listen}, {})
        server.settimeout(0.1)

        (other,) = installation_checks.check_ports("gateway", settings, None)
        (own,) = installation_checks.check_ports("gateway", settings, running)

    assert (other.level, own.level) == (Level.ERROR, Level.OK)
    assert "is in use: stop the process" in other.message
    assert own.message == f"{listen} is used by this installation"


def test_a_running_installation_is_read_from_its_lock(tmp_path: Path) -> None:
    """With the ports that it chose; a lock file that nobody holds says nothing."""
    address = Address("127.0.0.1", 28080)
    with lock_folder(tmp_path, LOCK_NAME, holder="x", remedy="y"):
        write_addresses(tmp_path, [Listener("gateway", "listen", address)], {})
        running = read_running(tmp_path)
        findings = {each.check: each.message for each in check_all(tmp_path)}

    assert running is not None
    assert running.addresses == {("gateway", "listen"): "127.0.0.1:28080"}
    assert findings["running"].startswith(f"`corral up` (process {os.getpid()} on ")
    assert findings["running"].endswith("): gateway on 127.0.0.1:28080")
    assert read_running(tmp_path) is None
    assert "running" not in {each.check for each in check_all(tmp_path)}


def check_all(data_dir: Path) -> list[Finding]:
    """Check an installation with this data folder and free ports."""
    config = data_dir / "corral.toml"
    listen = 'listen = "127.0.0.1:0"\nmanagement_listen = "none"\n'
    tables = [f"[{name}]\n{listen}" for name in ("gateway", "control", "inference")]
    config.write_text("".join(tables) + f'data_dir = "{data_dir}"\n')
    return list(installation_checks.check_installation(config, None))


async def test_a_service_of_an_installation_that_is_not_this_one_is_a_warning() -> None:
    """Its settings do not say whose it is, so nothing is claimed."""
    registry = CollectorRegistry()
    ProcessMetrics(registry, service="gateway", version="1")
    server = ManagementServer(listen="127.0.0.1:0", registry=registry, is_ready=never)
    await server.start()
    listen = {"listen": "127.0.0.1:0", "management_listen": str(server.address)}
    settings = load_settings(GatewaySettings, overrides=listen)
    ports = installation_checks.check_ports

    gateway = await asyncio.to_thread(lambda: list(ports("gateway", settings, None)))
    await server.close()

    assert [finding.level for finding in gateway] == [Level.OK, Level.WARNING]
    assert "a Corral gateway runs on this machine" in gateway[1].message


async def never() -> bool:
    return False


def test_a_data_folder_must_be_writable_and_have_room(tmp_path: Path) -> None:
    """It is created at the first start, so its parents count."""
    (tmp_path / "file").touch()
    check = installation_checks.check_folder

    assert check("x", tmp_path / "new/data", 1.0).level is Level.OK
    assert check("x", tmp_path / "new/data", 1e18).level is Level.ERROR
    assert check("x", tmp_path / "file/data", 1.0).level is Level.ERROR


def test_a_model_must_fit_in_memory(tmp_path: Path) -> None:
    """The file alone; the KV cache is planned when it is loaded."""
    large = tmp_path / "large.gguf"
    large.write_bytes(BUNDLED_PATH.read_bytes())
    os.truncate(large, 1 << 43)
    (fits,) = check_models(["bundled"])
    (large_one,) = check_models([str(large)], {"per_model": {"large": {"load": "on_demand"}}})

    assert fits.level is Level.OK
    assert large_one.level is Level.ERROR
    assert large_one.message.startswith("files of 8796.1 GB, ")


def test_a_missing_model_beside_another_is_a_warning(tmp_path: Path) -> None:
    """Before the service is started, which serves the other."""
    problem, rest = check_models(["bundled", str(tmp_path / "x.gguf")])

    assert (problem.check, problem.level, rest.level) == ("models", Level.WARNING, Level.OK)


def check_models(models: list[str], settings: dict[str, Any] | None = None) -> list[Finding]:
    loaded = load_settings(InferenceSettings, overrides={"models": models, **(settings or {})})
    return list(installation_checks.check_model_memory(loaded, is_running=False))


def test_a_missing_model_is_named_once(tmp_path: Path) -> None:
    """With the settings, which cannot work then."""
    config = tmp_path / "corral.toml"
    config.write_text(f"""[inference]\nmodels = ["{tmp_path}/x.gguf"]\ndata_dir = "{tmp_path}"\n""")

    found = list(installation_checks.check_installation(config, None, ["inference"]))

    named = [(each.check, each.level) for each in found if "x.gguf" in each.message]
    assert named == [("settings of inference", Level.ERROR)]


def test_a_database_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    """SQLite is created when it is needed."""
    sqlite = load_settings(ControlSettings, overrides={"data_dir": tmp_path})
    assert installation_checks.check_database(sqlite).level is Level.OK

    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    url = f"postgresql://corral:x@127.0.0.1:{port}/corral"
    settings = load_settings(ControlSettings, overrides={"database_url": url, "data_dir": tmp_path})
    finding = installation_checks.check_database(settings)

    assert finding.level is Level.ERROR
    assert "corral:x@" not in finding.message


@pytest.mark.parametrize(
    ("limit", "level"), [(256, Level.ERROR), (1024, Level.WARNING), (65536, Level.OK)]
)
def test_few_open_files_are_reported(limit: int, level: Level) -> None:
    """Each connection is one."""
    assert machine_checks.check_open_files(limit).level is level


def test_a_clock_before_the_installation_is_an_error() -> None:
    """A machine without a battery starts in 1970."""
    assert machine_checks.check_clock(1e9, installed=2e9).level is Level.ERROR
    assert machine_checks.check_clock(2e9, installed=1e9).level is Level.OK


def test_a_locale_that_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its programs print a warning each, and sort and convert text as in C."""
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")
    assert machine_checks.check_locale().level is Level.WARNING

    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert machine_checks.check_locale().level is Level.OK


def test_a_machine_without_shared_memory_is_reported(tmp_path: Path) -> None:
    """As in a container whose tmpfs is not mounted."""
    assert machine_checks.check_shared_memory(tmp_path / "shm").level is Level.WARNING


def test_the_exit_code_says_whether_anything_is_wrong(tmp_path: Path) -> None:
    """And with --json a program can read what."""
    config = tmp_path / "corral.toml"
    data = tmp_path / "data"
    config.write_text(f"""
[inference]
data_dir = "{data}"
listen = "127.0.0.1:0"
management_listen = "none"
[control]
listen = "127.0.0.1:0"
management_listen = "none"
[gateway]
listen = "127.0.0.1:0"
management_listen = "none"
""")
    good = CliRunner().invoke(cli, ["doctor", "--json", "--config", str(config)])
    config.write_text(config.read_text() + "colour = 1\n")
    bad = CliRunner().invoke(cli, ["doctor", "--json", "--config", str(config)])

    errors = [finding for finding in json.loads(good.output) if finding["level"] == "error"]
    assert (good.exit_code, errors) == (0, [])
    assert bad.exit_code == 1
    errors = [finding for finding in json.loads(bad.output) if finding["level"] == "error"]
    assert [finding["check"] for finding in errors] == ["settings of gateway"]
    assert "colour" in errors[0]["message"]


def test_findings_have_no_colours_in_a_file() -> None:
    """Only on a terminal, and not where NO_COLOR is set."""
    in_file, on_terminal, without = (
        CliRunner(env=env).invoke(cli, ["doctor"], color=color).output
        for env, color in [({}, False), ({}, True), ({"NO_COLOR": "1"}, True)]
    )

    assert [("\x1b[" in text) for text in (in_file, on_terminal, without)] == [False, True, False]
    assert "llama.cpp" in in_file
