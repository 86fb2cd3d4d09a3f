"""Remote servers: those of the settings, with the secrets that their files hold."""

from collections.abc import Sequence

from control_svc.clients.mcp_client import RemoteMcpServers, RemoteServer
from control_svc.config import McpServerSettings
from svc_kit.startup import StartupError


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


def _headers(server: McpServerSettings) -> dict[str, str]:
    try:
        return {name: file.read_text().strip() for name, file in server.header_files.items()}
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"mcp_servers: a header of {server.label!r}: {error}") from error
