"""Checks of an installation by its settings: folders, ports, models, certificates, database."""

import asyncio
import os
import shutil
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from control_svc.config import ControlSettings
from control_svc.db.engine import LOCK_NAME as CONTROL_LOCK_NAME
from corral_cli.db import check_schema
from corral_cli.doctor.findings import Finding, check_expiry, error, ok, warning
from corral_cli.doctor.upstream_checks import check_upstreams
from corral_cli.serve import SERVICES, load
from corral_cli.up.children import identify
from corral_cli.up.plan import Plan, UpFlags
from corral_cli.up.ports import bind_problem, reachable
from corral_cli.up.settings_checks import check_alone, check_together
from corral_cli.up.up_lock import Running, read_running
from inference_svc.config import InferenceSettings
from inference_svc.machine import available_memory_bytes
from inference_svc.model_pool.settings_check import check_models
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import read_lock
from svc_kit.network import Address, parse_address
from svc_kit.settings.checks import SettingsInvalid
from svc_kit.settings.groups import TlsSettings, UpstreamTlsSettings

_GB = 1e9
_LITTLE_DISK_BYTES, _ENOUGH_DISK_BYTES = 1e9, 10e9
_DATABASE_TIMEOUT_S = 10.0


def check_installation(
    config: Path | None, data_dir: Path | None, services: Sequence[str] = ()
) -> Iterator[Finding]:
    """Check the settings, then what they name. Without `services`, those of all are checked as
    `corral up` runs them. Settings that cannot be loaded end the checks."""
    names = services or SERVICES
    try:
        loaded = load_services(config, data_dir, services)
    except SettingsInvalid as problem:
        yield from report_settings(names, problem)
        return
    folders = {loaded[name].data_dir for name in ("inference", "control") if name in loaded}
    running = next(filter(None, map(read_running, folders)), None)
    try:
        if services:
            for settings in loaded.values():
                check_alone(settings, is_running=running is not None)
        else:
            check_together(loaded, is_running=running is not None)
    except SettingsInvalid as problem:
        yield from report_settings(names, problem)
    else:
        yield from (ok(f"settings of {name}", "valid") for name in names)
    if running:
        where = ", ".join(f"{name} on {text}" for (name, _), text in running.addresses.items())
        yield ok("running", f"`corral up` ({running.who}): {where}")
    for name, settings in loaded.items():
        yield from check_ports(name, settings, running)
        yield from check_certificates(name, settings, datetime.now(UTC))
    yield from check_folders(loaded)
    if inference := loaded.get("inference"):
        yield from check_model_memory(inference, is_running=running is not None)
        yield from check_upstreams(inference, datetime.now(UTC))
    if control := loaded.get("control"):
        yield check_database(control)


def load_services(
    config: Path | None, data_dir: Path | None, services: Sequence[str]
) -> Mapping[str, Any]:
    """Load settings, of all services with what they share. Raises SettingsInvalid."""
    if not services:
        return Plan.load(UpFlags(config=config, data_dir=data_dir)).by_service
    return {name: load(name, config, data_dir) for name in services}


def report_settings(services: Sequence[str], problem: SettingsInvalid) -> Iterator[Finding]:
    """A finding for each problem, and for each service without one."""
    for service, text in problem.problems:
        yield error(f"settings of {service}" if service else "settings", text, "")
    yield from (
        ok(f"settings of {name}", "valid") for name in services if name not in problem.services
    )


def check_ports(name: str, settings: Any, running: Running | None) -> Iterator[Finding]:
    """Each address must be free, unless this installation listens there."""
    check = f"port of {name}"
    for service, setting, address in settings.listeners:
        used = running and running.addresses.get((service, setting))
        if used:
            yield ok(check, f"{used} is used by this installation")
        elif (problem := bind_problem(address)) is None:
            yield ok(check, f"{address} is free")
        elif asyncio.run(identify(_management(settings))) == name:
            yield warning(
                check,
                f"{address} is in use, and a Corral {name} runs on this machine, of this"
                " installation or of another",
                "to run both, choose another port",
            )
        else:
            yield error(check, problem, "")


def _management(settings: Any) -> Address:
    return reachable(parse_address(settings.management_listen or settings.listen))


def check_folders(services: Mapping[str, Any]) -> Iterator[Finding]:
    """The data folders, and the folder for temporary files."""
    folders = {services[name].data_dir for name in ("inference", "control") if name in services}
    for folder in sorted(folders):
        yield check_folder("data folder", folder, _LITTLE_DISK_BYTES)
    yield check_folder("temporary files", Path(tempfile.gettempdir()), _LITTLE_DISK_BYTES / 10)


def check_folder(check: str, folder: Path, needed_bytes: float) -> Finding:
    """Whether files can be written there, and how many."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        user = f"user {os.geteuid()}"
        return error(
            check, f"{user} cannot write {existing}", f"give it to {user}, or choose another"
        )
    free = shutil.disk_usage(existing).free
    message = f"{free / _GB:.1f} GB are free in {folder}"
    remedy = "make room, or choose another folder"
    if free < needed_bytes:
        return error(check, message, remedy)
    if free < 10 * needed_bytes:
        return warning(check, message, remedy)
    return ok(check, message)


def check_model_memory(settings: InferenceSettings, *, is_running: bool) -> Iterator[Finding]:
    """Whether the files of the models fit in memory, and which cannot be used while others can.
    Nothing if `models` has problems, which are those of the settings already."""
    checked = check_models(settings, is_running=is_running)
    if checked.problems:
        return
    for file in checked.unusable:
        setting = f"upstreams.{file.name}.tokenizer" if file in checked.tokenizers else "models"
        yield warning("models", str(file.problem), f"correct `{setting}` in [inference]")
    size = sum(file.size_bytes for file in checked.files if not file.problem)
    available = available_memory_bytes()
    message = f"files of {size / _GB:.1f} GB, {available / _GB:.1f} GB of memory are available"
    if is_running or size < available * 0.9:
        remote = len(checked.remote)
        yield ok("models", message + (f", {remote} to download" if remote else ""))
        return
    remedy = "choose smaller or more quantized models, or per_model.NAME.load = on_demand"
    yield error("models", message, remedy)


def check_certificates(name: str, settings: Any, now: datetime) -> Iterator[Finding]:
    """Each certificate with its key: whether they belong together, and how long it is valid."""
    groups = [getattr(settings, field) for field in type(settings).model_fields]
    for group in groups:
        if isinstance(group, TlsSettings | UpstreamTlsSettings) and group.certificate_file:
            yield check_certificate(name, group.certificate_file, group.key_file, now)


def check_certificate(name: str, path: Path, key: Path | None, now: datetime) -> Finding:
    """Load a certificate as a server does, and look at its end."""
    check = f"certificate of {name}"
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(path, key)
        end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as problem:
        return error(check, f"{path} cannot be used: {problem}", "renew it")
    return check_expiry(check, str(path), end, now)


def check_database(settings: ControlSettings) -> Finding:
    """Whether it answers and has the schema of this release."""
    folder = settings.data_dir / "control"
    if holder := read_lock(folder, CONTROL_LOCK_NAME):
        return ok("database", f"the running control service uses it ({holder[0]})")
    file = folder / "control.sqlite3"
    if settings.database_url is None and not file.exists():
        return ok("database", f"SQLite; {file} is created at the first start")
    try:
        revision = asyncio.run(asyncio.wait_for(check_schema(settings), _DATABASE_TIMEOUT_S))
    except StartupError as problem:
        return error("database", str(problem), "see docs/operate/upgrade.md")
    except TimeoutError:
        message = f"it does not answer within {_DATABASE_TIMEOUT_S:.0f} s"
        if settings.database_url is None:  # a file: nothing else can be said of it
            return warning("database", message, "run doctor again when the machine is less busy")
        return error("database", message, "check database_url and the network")
    return ok("database", f"at revision {revision}, as this release needs it")
