"""The remote servers of the settings: what is wrong with them is said when Corral starts."""

from pathlib import Path

import pytest

from control_svc.agent.mcp_client import mcp_servers
from control_svc.config import McpServerSettings
from svc_kit.lifecycle import StartupError

SECRET = "hush"


def a_server(file: Path, name: str = "Authorization") -> McpServerSettings:
    """A server with one header."""
    return McpServerSettings(label="shop", url="http://shop/mcp", header_files={name: file})


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Authorization", f"{SECRET}\nX-Other: 1\n"),
        ("Authorization", f"{SECRET}\x00"),
        ("Authorization", f"{SECRET} é"),
        ("Authorization", "\n"),
        ("Authorization:", SECRET),
    ],
)
def test_a_header_that_http_cannot_carry_is_refused(
    tmp_path: Path, name: str, written: str
) -> None:
    """Calls would fail otherwise, and name the secret. So the error names the header alone."""
    file = tmp_path / "secret"
    file.write_text(written)
    with pytest.raises(StartupError, match="Authorization") as error:
        mcp_servers([a_server(file, name)])

    assert SECRET not in str(error.value)


def test_a_label_names_one_server(tmp_path: Path) -> None:
    """Two of one label would be one of them."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")

    assert mcp_servers([a_server(file)]).labels == {"shop"}
    with pytest.raises(StartupError, match="shop"):
        mcp_servers([a_server(file), a_server(file)])
