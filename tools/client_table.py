"""The clients of others in tests/clients/clients.toml: runs their programs against a server, and
writes the results into the tables of docs/use/clients.md.

A program does what applications do with its client: an answer, a stream, a tool loop whose history
is sent again, structured output, an error, and a cancelled stream. It prints the problem of each
check as JSON, empty if it passed.
"""

import json
import os
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
CLIENTS: Final = ROOT / "tests" / "clients"
FOLDERS: Final = (CLIENTS / "matrix", CLIENTS / "more")
"""Of programs. Those with clients that `make test-clients` tries too may be in the second one."""
TABLE: Final[Mapping[str, Any]] = tomllib.loads((CLIENTS / "clients.toml").read_text())
CHECKS: Final = ("answer", "stream", "tools", "structured", "error", "cancel")
NOT_OFFERED: Final = "not offered"
TIMEOUT_S: Final = 240


@dataclass(frozen=True, slots=True)
class Client:
    """A client: its name, the package whose version is listed, the lock file of its packages, and
    its program with an argument."""

    name: str
    package: str
    lock: str = ""
    program: str = ""
    argument: str = ""

    def command(self, interpreter: str, folder: Path | None = None) -> list[str]:
        """The command that runs its program, where it is or in a folder."""
        places = FOLDERS if folder is None else (folder,)
        found = next(place for place in places if (place / self.program).exists())
        return [interpreter, str(found / self.program), *self.argument.split()]


@dataclass(frozen=True, slots=True)
class Row:
    """A client's name and version, and the problem of each check, empty if it passed."""

    name: str
    version: str
    problems: dict[str, str]

    @property
    def failures(self) -> dict[str, str]:
        """The checks that failed."""
        failed = self.problems.items()
        return {name: each for name, each in failed if each and each != NOT_OFFERED}

    def print(self) -> None:
        """Print a line, and one for each check that failed."""
        print(f"{'FAILED' if self.failures else 'passed'} {self.name} {self.version}", flush=True)
        for check, problem in self.failures.items():
            print(f"  {check}: {problem}")


def clients(rows: Sequence[Mapping[str, str]], **common: str) -> list[Client]:
    """The clients of a list of the table."""
    return [Client(**{**common, **row}) for row in rows]


def run_program(
    command: Sequence[str], base_url: str, timeout_s: float = TIMEOUT_S, **variables: str
) -> dict[str, Any]:
    """The JSON that a program prints: the problems of its checks. One that fails as a whole has its
    output at the first."""
    more = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": str(ROOT), **variables}
    completed = subprocess.run(
        command,
        env={**os.environ, "CORRAL_BASE_URL": base_url, **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    lines = completed.stdout.strip().splitlines()
    if completed.returncode != 0 or not lines:
        return {"answer": completed.stderr[-2000:] or f"exit code {completed.returncode}"}
    printed: dict[str, Any] = json.loads(lines[-1])
    return printed


def result_table(rows: Sequence[Row]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = [f"| client | version | {' | '.join(CHECKS)} |", "|---" * (2 + len(CHECKS)) + "|"]
    for row in rows:
        cells = (_cell(row.problems.get(check, "")) for check in CHECKS)
        lines.append(f"| {row.name} | {row.version} | {' | '.join(cells)} |")
    return lines


def _cell(problem: str) -> str:
    if problem == NOT_OFFERED:
        return "-"
    return "no" if problem else "yes"


@dataclass(frozen=True, slots=True)
class Section:
    """The lines between two marks of a page in docs/use, which recipes of make write."""

    page: str
    name: str
    recipes: str

    def read(self) -> list[str]:
        """Its lines."""
        return self._parts()[1].strip().splitlines()

    def write(self, lines: Sequence[str]) -> None:
        """Replace its lines."""
        head, _, tail = self._parts()
        self._path.write_text("\n".join([head, *lines, tail]))

    def write_rows(self, head: str, rows: dict[str, str], order: Sequence[str]) -> None:
        """Write rows of its table, by their first cell; those of others stay. `order` are all."""
        known = {each.split("|")[1].strip(): each for each in self.read()[2:]} | rows
        line = "|---" * (head.count("|") - 1) + "|"
        self.write([head, line, *(known[name] for name in order if name in known)])

    @property
    def _path(self) -> Path:
        return ROOT / "docs" / "use" / self.page

    def _parts(self) -> tuple[str, str, str]:
        """The page up to the first mark, the text between the marks, and the rest."""
        text, end = self._path.read_text(), f"<!-- /{self.name} -->"
        begin = f"<!-- {self.name}: made by {self.recipes} ARGS=--write -->"
        head, _, rest = text.partition(begin)
        between, _, tail = rest.partition(end)
        return head + begin, between, end + tail
