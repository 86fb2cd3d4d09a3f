"""The table of docs/use/agents.md is that of the programs which `corral launch` knows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from corral_cli.launch.programs import PROGRAMS, Endpoint, Program, ServedModel
from tests.architecture.test_house_rules import ROOT

PAGE = ROOT / "docs" / "use" / "agents.md"
KEY = "key of the test"
ENDPOINT = Endpoint("http://h:1", KEY, ServedModel("m", 65536), [ServedModel("n")], Path("/files"))
HEAD = "| `corral launch` | installed by | in its environment | options | file | context |"


def rows() -> Iterator[str]:
    """The lines of the table."""
    yield HEAD
    yield "|---" * 6 + "|"
    for program in PROGRAMS.values():
        settings = program.configure(ENDPOINT)
        options = [each for each in settings.options if each.startswith("-")]
        cells = [
            f"`{program.name}`: [{program.title}]({program.homepage})",
            f"`{program.install}`",
            names([name for name, value in settings.variables.items() if value is not None]),
            names(options),
            names([path.name for path in settings.files]),
            f"{program.context_tokens:,}",
        ]
        yield f"| {' | '.join(cells)} |"


def names(words: list[str]) -> str:
    return ", ".join(f"`{word}`" for word in dict.fromkeys(words)) or "-"


def test_the_page_has_the_programs_and_what_each_is_told() -> None:
    """Copy the lines from this assertion after a change of the programs."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index(HEAD)
    table = list(rows())

    assert lines[begin : begin + len(table)] == table
    assert lines[begin + len(table)] == ""


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_no_option_of_a_program_has_the_key(program: Program) -> None:
    """Everybody on the machine can read the options of a process."""
    settings = program.configure(ENDPOINT)

    assert [option for option in settings.options if KEY in option] == []
    assert program.source.startswith("https://")
