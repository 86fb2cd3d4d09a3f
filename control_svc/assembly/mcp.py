"""Remote servers: those of the settings, with the secrets that their files hold."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from control_svc.clients.mcp_client import RemoteMcpServers, RemoteServer
from control_svc.config import McpServerSettings
from svc_kit.startup import StartupError

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[ -~]+")


def mcp_servers(settings: Sequence[McpServerSettings]) -> RemoteMcpServers:
    """The servers. Raises StartupError where two have one label, or a file cannot be read."""
    servers: dict[str, RemoteServer] = {}
    for server in settings:
        if server.label in servers:
            raise StartupError(f"mcp_servers: two servers have the label {server.label!r}")
        servers[server.label] = RemoteServer(
            url=server.url,
            headers=_headers(server),
            timeout_s=server.timeout_s,
            output_bytes=server.output_bytes,
        )
    return RemoteMcpServers(servers)


def _headers(server: McpServerSettings) -> Mapping[str, str]:
    return {name: _value(server.label, name, file) for name, file in server.header_files.items()}


def _value(label: str, name: str, file: Path) -> str:
    """The header's value; what HTTP cannot carry would be refused, and quoted, at every call."""
    header = f"mcp_servers: the header {name!r} of {label!r}"
    if not _NAME.fullmatch(name):
        raise StartupError(f"{header} has no name of a header")
    try:
        value = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{header}: {error}") from error
    if not _VALUE.fullmatch(value):
        raise StartupError(f"{header}: its file has to hold one line of printable ASCII")
    return value
