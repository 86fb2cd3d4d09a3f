"""The children of `corral up`: checks before the start, commands, environment, readiness."""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corral_cli.up.supervisor import Service
from inference_svc.models.sources import RemoteFile, parse_reference, resolve_models
from svc_kit.lifecycle import StartupError
from svc_kit.network import Address


def check_models(references: Sequence[str]) -> None:
    """Read the header of every model that is on this machine. Raises StartupError.

    What Hugging Face holds is fetched by the service, which knows where to keep it; here only the
    reference is read.
    """
    here = [text for text in references if parse_reference(text).remote is None]
    if here:
        resolve_models(here, download=_not_here)


def _not_here(remote: RemoteFile) -> Path:
    raise StartupError(f"model {remote}: it is not on this machine")


def ensure_token(path: Path) -> None:
    """Make the file with the token by which our services know each other, readable by us alone.

    An existing one is kept: another service may already hold it. Raises StartupError.
    """
    if path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made under its final mode, so that there is no moment at which others could read it.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")


PROBE_PATIENCE_S = 2.0


def a_service(
    name: str,
    *,
    variables: Mapping[str, str],
    config: Path | None,
    management: Address,
    stop_patience_s: float,
    is_vital: bool = True,
) -> Service:
    """A Corral service; it is ready when its management listener reports so."""

    def command(lifeline_fd: int) -> Sequence[str]:
        # -P: a folder of the operator's that happens to be called like a module is not imported.
        start = [sys.executable, "-P", "-m", "corral_cli", "serve", name]
        flags = ["--config", str(config)] if config else []
        return [*start, *flags, "--lifeline", str(lifeline_fd)]

    async def is_ready() -> bool:
        return await answers_ok(management, "/readyz")

    return Service(
        name=name,
        command=command,
        is_ready=is_ready,
        environment={**os.environ, **variables},
        stop_patience_s=stop_patience_s,
        is_vital=is_vital,
    )


def as_variables(prefix: str, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Settings as the environment variables that set them; a dotted name is one in a group."""
    return {
        prefix + name.upper().replace(".", "__"): _as_text(value)
        for name, value in overrides.items()
    }


def _as_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return json.dumps([str(item) for item in value])
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)


async def answers_ok(address: Address, path: str) -> bool:
    """Whether an HTTP GET returns 200; False without an answer."""
    try:
        async with asyncio.timeout(PROBE_PATIENCE_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                status_line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status_line.split(b" ")[1:2] == [b"200"]
