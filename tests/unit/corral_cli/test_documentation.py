"""Commands and settings that the documentation shows exist."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from corral_cli.__main__ import cli
from corral_cli.serve import SERVICES, settings_class
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import load_settings
from tests.architecture.test_house_rules import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IN_CONTAINER = r"docker (?:compose )?exec \S+ |docker compose run .* |kubectl .* -- "
PREFIX = rf"(?:{IN_CONTAINER})?(?:\.venv/bin/|/opt/corral/bin/|as_)?"
COMMAND = re.compile(rf"^{PREFIX}corral ([a-z-].*)$")
ENDS = re.compile(r"[0-9]?>.*|[|&;]+|<.*|--")
"""Words after those of the command: redirections, other commands, and arguments of a program."""
MISSING_FILE = "there is no file"


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    """The code blocks of all pages in a language, with the page."""
    for page in PAGES:
        for block in re.findall(rf"(?ms)^ *```{language}\n(.*?)^ *```$", page.read_text("utf-8")):
            yield page, block


def commands() -> Iterator[tuple[str, list[str]]]:
    """The words after `corral` of each command line, with the name of the page."""
    for page, block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if match := COMMAND.match(line.partition(" #")[0].rstrip()):
                words = shlex.split(match[1])
                ends = [at for at, word in enumerate(words) if ENDS.fullmatch(word)]
                yield page.name, words[: min(ends, default=len(words))]


def test_commands_and_their_options_exist() -> None:
    """`--help` stops a command that has understood all options before it."""
    documented = list(commands())
    wrong = [
        f"{page}: corral {shlex.join(words)}: {result.output.splitlines()[-1]}"
        for page, words in documented
        if (result := CliRunner().invoke(cli, [*words, "--help"])).exit_code
    ]

    assert len(documented) > 80
    assert wrong == []


@pytest.mark.parametrize("service", SERVICES)
def test_settings_are_valid(service: str, tmp_path: Path) -> None:
    """Apart from files that the reader has to provide."""
    wrong = []
    config = tmp_path / "corral.toml"
    for page, block in blocks("toml"):
        if not tomllib.loads(block).keys() & set(SERVICES):
            continue
        config.write_text(block, "utf-8")
        try:
            load_settings(settings_class(service), toml=config, environment={})
        except StartupError as error:
            problems = str(error).splitlines()[1:]
            wrong += [f"{page.name}: {each}" for each in problems if MISSING_FILE not in each]

    assert wrong == []
