"""Checks of an installation by its settings: folders, ports, models, certificates, database."""

import asyncio
import os
import shutil
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from control_svc.config import ControlSettings
from corral_cli.db import check_schema
from corral_cli.doctor.findings import Finding, error, ok, warning
from corral_cli.serve import SERVICES, load
from corral_cli.up.children import check_models, responds_ok
from corral_cli.up.ports import bind_problem, reachable
from inference_svc.config import InferenceSettings
from inference_svc.machine import available_memory_bytes
from inference_svc.models.sources import BUNDLED, BUNDLED_PATH, parse_reference
from svc_kit.lifecycle import StartupError
from svc_kit.network import parse_address
from svc_kit.settings.groups import TlsSettings, UpstreamTlsSettings, read_secret

_GB = 1e9
_LITTLE_DISK_BYTES, _ENOUGH_DISK_BYTES = 1e9, 10e9
_DATABASE_TIMEOUT_S = 10.0
_RENEWAL_DAYS = 21


def check_installation(config: Path | None) -> Iterator[Finding]:
    """Check the settings, then what they name. Wrong settings end the checks that need them."""
    services: dict[str, Any] = {}
    for name in SERVICES:
        try:
            services[name] = load(name, config)
        except StartupError as problem:
            yield error(f"settings of {name}", str(problem).replace("\n", " "), "correct them")
        else:
            yield ok(f"settings of {name}", "valid")
    running = {name for name, settings in services.items() if is_running(settings)}
    for name, settings in services.items():
        yield from check_ports(name, settings, is_own=name in running)
        yield from check_certificates(name, settings, datetime.now(UTC))
    yield from check_folders(services)
    if inference := services.get("inference"):
        yield check_model_memory(inference, is_running="inference" in running)
    if control := services.get("control"):
        yield check_database(control, is_running="control" in running)


def is_running(settings: Any) -> bool:
    """Whether a service of these settings answers on this machine."""
    if settings.management_listen is None:
        return False
    address = reachable(parse_address(settings.management_listen))
    return asyncio.run(responds_ok(address, "/healthz"))


def check_ports(name: str, settings: Any, *, is_own: bool) -> Iterator[Finding]:
    """Each address must be free, unless the service itself listens there."""
    for text in filter(None, (settings.listen, settings.management_listen)):
        problem = None if is_own else bind_problem(parse_address(text))
        if problem:
            yield error(f"port of {name}", problem, "")
        else:
            yield ok(f"port of {name}", f"{text} is {'used by Corral' if is_own else 'free'}")


def check_folders(services: Mapping[str, Any]) -> Iterator[Finding]:
    """The data folders, the folder for temporary files, and the files with the service token."""
    folders = {services[name].data_dir for name in ("inference", "control") if name in services}
    for folder in sorted(folders):
        yield check_folder("data folder", folder, _LITTLE_DISK_BYTES)
        yield from check_token(folder / "service-token")
    yield check_folder("temporary files", Path(tempfile.gettempdir()), _LITTLE_DISK_BYTES / 10)
    tokens = {settings.service_token_file for settings in services.values()} - {None}
    for path in sorted(tokens):
        yield from check_token(path, is_needed=True)


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


def check_token(path: Path, *, is_needed: bool = False) -> Iterator[Finding]:
    """Whether only this user can read the token. `corral up` creates a missing one."""
    if not path.exists() and not is_needed:
        return
    try:
        read_secret(path)
    except StartupError as problem:
        remedy = f"as its owner: chmod 600 {path}" if path.exists() else "copy the token there"
        yield error("service token", str(problem), remedy)
    else:
        yield ok("service token", f"{path} is readable for this user alone")


def check_model_memory(settings: InferenceSettings, *, is_running: bool) -> Finding:
    """Whether the models are valid files, and fit in memory beside a little state."""
    try:
        problems = check_models(settings.models)
    except StartupError as problem:
        problems = [str(problem)]
    if problems:
        return error("models", problems[0], "correct `models` in [inference]")
    sizes = [size for text in settings.models for size in model_bytes(text)]
    available = available_memory_bytes()
    message = (
        f"files of {sum(sizes) / _GB:.1f} GB, {available / _GB:.1f} GB of memory are available"
    )
    if is_running or sum(sizes) < available * 0.9:
        remote = sum(parse_reference(text).remote is not None for text in settings.models)
        return ok("models", message + (f", {remote} to download" if remote else ""))
    remedy = "choose smaller or more quantized models, or per_model.NAME.load = on_demand"
    return error("models", message, remedy)


def model_bytes(text: str) -> Iterator[int]:
    """Sizes of the files of a model; nothing for one that is not downloaded."""
    reference = parse_reference(text)
    if reference.remote is not None:
        return
    path = BUNDLED_PATH if reference.source == BUNDLED else Path(reference.source)
    files = path.glob("*.gguf") if path.is_dir() else [path]
    yield from (file.stat().st_size for file in files)


def check_certificates(name: str, settings: Any, now: datetime) -> Iterator[Finding]:
    """Each certificate with its key: whether they belong together, and how long it is valid."""
    groups = [getattr(settings, field) for field in type(settings).model_fields]
    for group in groups:
        if isinstance(group, TlsSettings | UpstreamTlsSettings) and group.certificate_file:
            yield check_certificate(name, group.certificate_file, group.key_file, now)


def check_certificate(name: str, path: Path, key: Path | None, now: datetime) -> Finding:
    """Load a certificate as a server does, and look at its end."""
    check, remedy = f"certificate of {name}", "renew it"
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(path, key)
        end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as problem:
        return error(check, f"{path} cannot be used: {problem}", remedy)
    days = (end - now).days
    if end <= now:
        return error(check, f"{path} expired on {end:%Y-%m-%d}", remedy)
    message = f"{path} is valid for {days} days"
    return warning(check, message, remedy) if days < _RENEWAL_DAYS else ok(check, message)


def check_database(settings: ControlSettings, *, is_running: bool) -> Finding:
    """Whether it answers and has the schema of this release."""
    if is_running:
        return ok("database", "the running control service uses it")
    file = settings.data_dir / "control" / "control.sqlite3"
    if settings.database_url is None and not file.exists():
        return ok("database", f"SQLite; {file} is created at the first start")
    try:
        revision = asyncio.run(asyncio.wait_for(check_schema(settings), _DATABASE_TIMEOUT_S))
    except StartupError as problem:
        return error("database", str(problem), "see docs/operate/upgrade.md")
    except TimeoutError:
        message = f"it does not answer within {_DATABASE_TIMEOUT_S:.0f} s"
        return error("database", message, "check database_url and the network")
    return ok("database", f"at revision {revision}, as this release needs it")
