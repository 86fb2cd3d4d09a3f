"""The services as the supervisor sees them: command, environment, and when they are ready.

Settings reach a service as environment variables over those of the operator, plus the path of the
configuration file: the same two sources it reads when it is started alone.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corral_cli.supervisor import Service
from svc_kit.addresses import Address

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
    """A service of ours; it is ready when its management listener says so."""

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
    """Whether an HTTP GET is answered with 200; False when nobody answers."""
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
