"""systemd units, the Dockerfile and the compose file: checked by systemd and hadolint, and read by
the settings code of the services that they start."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from corral_cli.serve import SERVICES, settings_class
from svc_kit.settings.groups import load_settings
from tests.architecture.test_house_rules import ROOT
from tests.support.prometheus import promtool

DEPLOY = ROOT / "deploy"
SERVICE_UNITS = ["corral.service", "corral@.service"]
BACKUP_UNIT = "corral-backup.service"
UNITS = [*SERVICE_UNITS, BACKUP_UNIT]
DIVIDED_UNITS = ["ggml-rpc-server.service", "llama-server.service"]
MAX_EXPOSURE = 20
"""Of 100, in systemd's reckoning: what may be written, called, opened and seen."""
MARGIN_S = 10


def unit(name: str) -> dict[str, list[str]]:
    """The values of each key of a unit, in order."""
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    values: dict[str, list[str]] = {}
    for key, sign, value in (line.partition("=") for line in lines if not line.startswith("#")):
        if sign:
            values.setdefault(key, []).append(value)
    return values


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", [*UNITS, *DIVIDED_UNITS])
def test_units_are_hardened(name: str) -> None:
    """A service that is broken into can read its own data and answer callers, and little else."""
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager"]
    path = DEPLOY / "systemd" / name
    threshold = f"--threshold={MAX_EXPOSURE}"
    result = subprocess.run([*command, threshold, str(path)], capture_output=True, text=True)

    assert result.returncode == 0, result.stdout
    assert "OK" in result.stdout.splitlines()[-1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    """Every key, value and reference, as far as it can say without the installed program."""
    units = [path for path in (DEPLOY / "systemd").iterdir() if path.suffix != ".conf"]
    for path in units:
        text = re.sub(r"/opt/\S+/bin/\S+", "/bin/true", path.read_text())
        (tmp_path / path.name.replace("@", "@gateway")).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())]
    result = subprocess.run(command, capture_output=True, text=True)

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", UNITS)
def test_units_start_commands_that_exist(name: str, tmp_path: Path) -> None:
    """`corral COMMAND --help` knows the command and its options."""
    lines = [value for key in ("ExecStartPre", "ExecStart") for value in unit(name).get(key, [])]
    for line in lines:
        program, *arguments = shlex.split(line.replace("%i", "gateway"))
        assert program == "/opt/corral/bin/corral"
        command = [sys.executable, "-m", "corral_cli", *arguments, "--help"]
        path = os.pathsep.join([str(ROOT), str(ROOT / "gen")])
        environment = {**os.environ, "PYTHONPATH": path}
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", DIVIDED_UNITS)
def test_rpc_servers_are_reached_from_this_machine_only(name: str) -> None:
    """They ask for no key. The kernel refuses other addresses, whatever the command says."""
    words = shlex.split(unit(name)["ExecStart"][0])

    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert unit(name)["IPAddressDeny"] == ["any"]
    assert unit(name)["IPAddressAllow"] == ["localhost"]


def test_units_set_settings_that_exist() -> None:
    """systemd replaces %d by the folder of credentials, %S by the state folder."""
    assignments = dict(
        pair.split("=", 1)
        for name in SERVICE_UNITS
        for line in unit(name)["Environment"]
        for pair in line.split()
    )
    for service in SERVICES:
        settings: Any = load_settings(settings_class(service), environment=assignments)
        assert str(settings.service_token_file) == "%d/service-token"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_backups_run_every_night_as_the_user_of_the_services() -> None:
    """In the same data folder, with the same secrets. The timer starts the unit of its name."""
    backup, service = unit(BACKUP_UNIT), unit("corral@.service")
    (calendar,) = unit(BACKUP_UNIT.replace(".service", ".timer"))["OnCalendar"]
    subprocess.run(["systemd-analyze", "calendar", calendar], check=True, capture_output=True)

    assert backup["StateDirectory"] == ["corral corral-backups"]
    for key in ("User", "DynamicUser", "EnvironmentFile", "WorkingDirectory", "UMask"):
        assert backup[key] == service[key], key
    assert "CORRAL_DATA_DIR=%S/corral" in backup["Environment"][0]


@pytest.mark.parametrize("name", SERVICE_UNITS)
def test_units_are_started_once_they_are_ready(name: str) -> None:
    """Units that follow them find the services listening."""
    assert unit(name)["Type"] == ["notify"]


@pytest.mark.parametrize(("name", "num_drains"), [("corral.service", 3), ("corral@.service", 1)])
def test_units_wait_for_the_drains(name: str, num_drains: int) -> None:
    """`corral up` stops one service after the other."""
    settings: Any = load_settings(settings_class("control"), environment={})
    (timeout,) = unit(name)["TimeoutStopSec"]

    needed_s = num_drains * (settings.server.drain_grace_s + MARGIN_S)
    assert int(timeout.removesuffix("s")) > needed_s
    assert unit(name)["KillMode"] == ["mixed"]


def test_the_dockerfile_is_clean() -> None:
    """By the rules of hadolint; an exception has its reason beside it."""
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [str(hadolint), str(DEPLOY / "Dockerfile")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout


def test_the_image_is_built_from_what_the_build_needs() -> None:
    """Every folder of the wheel and what the installation reads is in the build context."""
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text()
    kept = set(re.findall(r"(?m)^!(\S+)", ignore))
    project = (ROOT / "pyproject.toml").read_text()
    packages = re.findall(r'"(\w+)(?:/\w+)?"', re.findall(r"(?m)^packages = \[(.*)\]", project)[0])

    assert kept >= {*packages, "migrations", "requirements", "pyproject.toml", "deploy/build.sh"}
    for name in kept:
        assert list(ROOT.glob(name)), name


@pytest.mark.parametrize("addition", [None, "compose.s3.yaml", "compose.monitoring.yaml"])
def test_services_accept_the_settings_of_compose(addition: str | None) -> None:
    """Its file, and the environment of all its files together."""
    folder = DEPLOY / "compose"
    files = ["compose.yaml", *([addition] if addition else [])]
    documents = [yaml.safe_load((folder / name).read_text()) for name in files]
    service = documents[0]["services"]["corral"]
    environment: dict[str, str] = {}
    for document in documents:
        environment |= document["services"]["corral"]["environment"]
    environment = {key: re.sub(r"\$\{.*?\}", "12345678", text) for key, text in environment.items()}
    loaded: dict[str, Any] = {
        name: load_settings(
            settings_class(name), toml=folder / "corral.toml", environment=environment
        )
        for name in SERVICES
    }

    assert all(settings.require_keys for settings in loaded.values())
    database = loaded["control"].database_url.get_secret_value()
    assert database == "postgresql://corral:12345678@postgres/corral"
    assert (loaded["control"].blobs_url is not None) == (addition == "compose.s3.yaml")
    drains_s = loaded["gateway"].drain_grace_s + sum(
        loaded[name].server.drain_grace_s for name in ("control", "inference")
    )
    assert int(service["stop_grace_period"].removesuffix("s")) > drains_s + 3 * MARGIN_S
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]


def test_prometheus_scrapes_what_compose_starts(tmp_path: Path) -> None:
    """As `monitoring/prometheus.yml` does on one machine: with the alerts, under their job name."""
    folder, local = DEPLOY / "compose", ROOT / "monitoring/prometheus"
    document = yaml.safe_load((folder / "compose.monitoring.yaml").read_text())
    ports = {
        "corral:" + address.rpartition(":")[2]
        for address in document["services"]["corral"]["environment"].values()
    }
    settings, like = (
        yaml.safe_load((each / "prometheus.yml").read_text()) for each in (folder, local)
    )
    [job], [local_job] = settings.pop("scrape_configs"), like.pop("scrape_configs")
    [group] = job.pop("static_configs")
    del local_job["static_configs"]

    assert set(group["targets"]) == ports
    assert (job, settings) == (local_job, like)
    for volume in document["services"]["prometheus"]["volumes"][:2]:
        source, target, _ = volume.split(":")
        shutil.copy(folder / source, tmp_path / Path(target).name)
    promtool("check", "config", "prometheus.yml", folder=tmp_path)


def test_the_bill_of_materials_has_every_locked_package(tmp_path: Path) -> None:
    """With its version and hashes; `make sbom` writes it, CycloneDX's own tool validates it."""
    (recipe,) = re.findall(r"(?m)^\t\$\(BIN\)/(cyclonedx-py .*)$", (ROOT / "Makefile").read_text())
    program, *arguments = shlex.split(recipe.replace("dist/corral.cdx.json", str(tmp_path / "x")))
    command = [str(Path(sys.executable).with_name(program)), *arguments, "--validate"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)

    components = json.loads((tmp_path / "x").read_text())["components"]
    lock = (ROOT / "requirements/runtime.txt").read_text()
    assert {f"{each['name']}=={each['version']}" for each in components} == set(
        re.findall(r"(?m)^([a-z0-9-]+==[^ ]+)", lock)
    )
    assert all(each["externalReferences"][0]["hashes"] for each in components)
