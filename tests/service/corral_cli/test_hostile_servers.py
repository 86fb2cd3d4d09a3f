"""What commands print of a server that others run."""

import unicodedata
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from corral_cli.__main__ import cli
from corral_cli.connection import list_all
from tests.support.hostile_rpc import run_hostile_rpc

NAME = "a\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202egnp\u2066\u200b\u2028b\nroot# forged\x7f"
INFERENCE = (
    "models list",
    "models list --json",
    "models show m",
    "models show m --json",
    "models load m",
    "models unload m",
    "models add hf:o/r",
    "models alias m n",
    "models update m --ttl 5",
    "top --once --interval 0.1",
    "top --once --interval 0.1 --json",
    "adapters list --loaded",
    "adapters load v {file}",
    "chat",
)
CONTROL = (
    "adapters list --json",
    "adapters add v {file}",
    "adapters remove v",
    "keys list",
    "keys list --json",
    "keys create",
    "keys revoke k",
    "keys rotate k",
    "limits list",
    "limits list --json",
    "limits status",
    "limits create l --unit requests --period day --amount 1",
    "jobs dead",
    "jobs retry j",
    "projects list",
    "projects create p",
    "projects archive p",
    "usage",
    "audit",
    "batch list",
    "batch cancel b",
    "batch watch b",
    "threads migrate t",
    "import assistants {file}",
)


def printed(result: Result) -> list[str]:
    """The lines that a terminal got, after a check that it would obey nothing in them."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    found = {each for each in result.output if unicodedata.category(each) in ("Cc", "Cf", "Zl")}
    assert found <= {"\n"}
    return result.output.split("\n")


@pytest.fixture(params=[False, True], ids=["answers", "errors"], scope="module")
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that says the text in every field, or as the message of an error."""
    with run_hostile_rpc(NAME, error=request.param) as address:
        yield address


@pytest.mark.parametrize("command", [*INFERENCE, *CONTROL])
def test_no_command_prints_what_a_terminal_obeys(target: str, tmp_path: Path, command: str) -> None:
    """Nor can a name begin a line: neither in results, nor in errors, nor in progress."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": "asst_1", "object": "assistant", "model": "m"}\n')
    words = [*command.format(file=file).split(), "--target", target, "--control", target]
    result = CliRunner().invoke(cli, words, input="hello\n")
    lines = printed(result)

    assert "No such" not in result.output
    assert "Usage:" not in result.output
    if command != "chat":  # whose answers have lines
        assert not [line for line in lines if line.startswith("root#")]


async def test_a_list_that_never_ends_is_given_up() -> None:
    """A page that names itself as the next one."""

    class Page:
        items = ("x",)
        next_page_token = "again"

    class Request:
        page_token = ""

    async def method(_request: Request, timeout: float | None) -> Page:
        return Page()

    with pytest.raises(click.ClickException, match="repeats the pages"):
        _ = [item async for item in list_all(method, Request(), "items")]
