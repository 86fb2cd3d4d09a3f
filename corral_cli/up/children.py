"""The child processes of `corral up`: checks before start, command, environment, readiness."""

import asyncio
import fcntl
import functools
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from corral_cli.up.supervisor import Service
from svc_kit.lifecycle import NOTIFY_SOCKET, StartupError
from svc_kit.network import Address


@contextmanager
def lock_of_children(folder: Path, report: Callable[[str], None]) -> Iterator[int]:
    """Hold a lock that the children inherit, so that the last one to end releases it.

    The children of a `corral up` that was killed end within seconds, and use the ports and the data
    until then: they are waited for. Raises StartupError if they do not end. Yields the descriptor.
    """
    with (folder / _LOCK_NAME).open("a") as file:
        for number in range(round(_LOCK_TIMEOUT_S / _LOCK_POLL_S)):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if number == 0:
                report("waiting for the services of a `corral up` that was killed")
            time.sleep(_LOCK_POLL_S)
        else:
            raise StartupError(
                f"services of another `corral up` on {folder} are still running: stop them"
            )
        yield file.fileno()


def ensure_token(path: Path) -> None:
    """Create the service token file with mode 0600, unless it exists. Raises StartupError.

    An existing token is not replaced, because running services may use it.
    """
    if path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Created with its final mode, so that others cannot read it in between.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")


_PROBE_TIMEOUT_S = 2.0
_QUIET_GRPC: Final = {"GRPC_VERBOSITY": "NONE"}
"""gRPC's C core writes to stderr by itself, for example a line for each failed TLS handshake."""
_LOCK_NAME: Final = "children.lock"
_LOCK_POLL_S: Final = 0.05
_LOCK_TIMEOUT_S: Final = 10.0
"""Twice as long as `parent_watch` lets a child live without its supervisor."""


def make_service(
    name: str,
    table: str,
    *,
    variables: Mapping[str, str],
    config: Path | None,
    management: Address,
    is_ready: Callable[[], Awaitable[bool]],
    stop_timeout_s: float,
    is_vital: bool = True,
) -> Service:
    """Describe a Corral service to the supervisor; `table` names its settings."""

    def command(lifeline_fd: int) -> Sequence[str]:
        # -P: do not import modules from the working directory.
        interpreter = [sys.executable, "-P", "-m", "corral_cli", "serve", table]
        flags = ["--config", str(config)] if config else []
        return [*interpreter, *flags, "--lifeline", str(lifeline_fd)]

    # systemd hears of `corral up`, not of its services.
    inherited = {key: value for key, value in os.environ.items() if key != NOTIFY_SOCKET}
    return Service(
        name=name,
        command=command,
        is_ready=is_ready,
        environment={**_QUIET_GRPC, **inherited, **variables},
        stop_timeout_s=stop_timeout_s,
        is_vital=is_vital,
        count_running=functools.partial(count_running, management),
    )


def environment_variables(prefix: str, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Convert settings to environment variables. A dotted name is a setting in a group."""
    return {
        prefix + name.upper().replace(".", "__"): _serialize(value)
        for name, value in overrides.items()
    }


def _serialize(value: Any) -> str:
    if isinstance(value, list | tuple):
        return json.dumps([str(item) for item in value])
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)


async def responds_ok(address: Address, path: str) -> bool:
    """Whether an HTTP GET returns 200 within the probe timeout."""
    return await _get(address, path) is not None


async def accepts_connections(address: Address) -> bool:
    """Whether something listens on the address."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


_RUNNING: Final = re.compile(
    rb"^corral_(?:http_server_in_flight|rpc_server_in_flight|jobs_running)(?:\{[^}]*\})? (\S+)$",
    re.MULTILINE,
)


async def count_running(management: Address) -> int | None:
    """The running requests, calls and jobs by the metrics of a service; None if unreachable."""
    metrics = await _get(management, "/metrics")
    return None if metrics is None else int(sum(map(float, _RUNNING.findall(metrics))))


_SERVICE: Final = re.compile(rb'^corral_build_info\{service="([a-z]+)"', re.MULTILINE)


async def identify(management: Address) -> str | None:
    """The name of the Corral service whose management listener this is; None if it is none."""
    metrics = await _get(management, "/metrics")
    found = _SERVICE.search(metrics or b"")
    return found and found[1].decode()


async def _get(address: Address, path: str) -> bytes | None:
    """The body of a response with status 200; None for another one, or after the timeout."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                response = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    head, _, body = response.partition(b"\r\n\r\n")
    return body if head.split(b" ")[1:2] == [b"200"] else None
