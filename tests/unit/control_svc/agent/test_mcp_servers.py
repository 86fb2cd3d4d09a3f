"""MCP servers in the settings: errors are reported at start."""

from pathlib import Path

import pytest

from control_svc.agent.mcp_client import mcp_servers
from control_svc.config import McpServerSettings

SECRET = "hush"


def make_server(file: Path, name: str = "Authorization") -> McpServerSettings:
    return McpServerSettings(label="shop", url="http://shop/mcp", header_files={name: file})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("Authorization", f"{SECRET}\nX-Other: 1\n"),
        ("Authorization", f"{SECRET}\x00"),
        ("Authorization", f"{SECRET} é"),
        ("Authorization", "\n"),
        ("Authorization:", SECRET),
    ],
)
def test_an_invalid_header_is_refused(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    with pytest.raises(ValueError, match="Authorization") as error:
        make_server(file, name)

    assert SECRET not in str(error.value)


def test_headers_are_read_from_their_files(tmp_path: Path) -> None:
    """Without the line end."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")

    assert make_server(file).read_headers() == {"Authorization": SECRET}
    assert mcp_servers([make_server(file)]).labels == {"shop"}
