"""Runs the clients of the second table of tests/clients/clients.toml, for `make more-clients`.

The packages are installed by name, in their newest releases, into throwaway environments; so this
is no part of the tests. `ARGS=--write` writes the results with versions and date into the second
table of docs/use/clients.md, and those of sessions of coding agents into that of
docs/use/agents.md, where rows of other clients stay; other arguments are names of environments that
are tried alone.
"""

import datetime
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.agent_sessions import AgentSession, run_session, write_sessions
from tools.client_table import (
    CHECKS,
    FOLDERS,
    TABLE,
    Client,
    Row,
    Section,
    clients,
    result_table,
    run_program,
)
from tools.corral_server import running_server

INSTALL_TIMEOUT_S: Final = 900
SECTION: Final = Section("clients.md", "more clients", "make more-clients")
AGENTS: Final = "coding_agents.py"
"""It runs with Corral's packages, and starts executables of the environment."""


def main(arguments: Sequence[str]) -> int:
    """Try the clients. Returns how many failed a check, or could not be installed."""
    only = [each for each in arguments if not each.startswith("--")]
    num_failed = 0
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as base_url:
        for environment in (*TABLE["node"], *TABLE["python"]):
            if only and environment["name"] not in only:
                continue
            home = Path(folder, environment["name"])
            home.mkdir()
            rows = []
            for row in _try_all(environment, home, base_url):
                rows.append(row)
                row.print()
            sessions = [] if rows[0].failures else _run_sessions(environment, home)
            num_failed += sum(bool(each.failures) for each in rows)
            num_failed += sum(bool(each.failures) for each in sessions)
            if "--write" in arguments:
                _write(rows)
                write_sessions(sessions)
            shutil.rmtree(home)
    return num_failed


def _write(rows: Sequence[Row]) -> None:
    """Write rows into the table; those of other clients stay."""
    today = datetime.datetime.now(datetime.UTC).date()
    head, _, *lines = result_table(rows)
    new = {row.name: f"{each} {today:%Y-%m-%d} |" for row, each in zip(rows, lines, strict=True)}
    environments = (*TABLE["python"], *TABLE["node"])
    names = [client["name"] for each in environments for client in each["clients"]]
    SECTION.write_rows(f"{head} tried |", new, names)


def _try_all(environment: Mapping[str, Any], home: Path, base_url: str) -> Iterator[Row]:
    """The rows of the clients of an environment, which is installed into an empty folder."""
    is_python = environment in TABLE["python"]
    install = _install_python if is_python else _install_node
    version = _python_version if is_python else _node_version
    problem = install(environment["packages"].split(), home)
    for script in environment.get("scripts", ()):
        problem = problem or _run(["node", script], cwd=home / "node_modules")
    for client in clients(environment["clients"], program=environment["program"]):
        if problem:
            yield Row(client.name, "", dict.fromkeys(CHECKS, problem))
            continue
        command = _command(client, home, is_python=is_python)
        problems = run_program(command, base_url, HOME=str(home))
        yield Row(client.name, version(client.package, home), problems)


def _run_sessions(environment: Mapping[str, Any], home: Path) -> list[AgentSession]:
    """Run those of the coding agents of an environment that is installed."""
    if environment["program"] != AGENTS:
        return []
    is_python = environment in TABLE["python"]
    version = _python_version if is_python else _node_version
    folder = home / "bin" if is_python else home / "node_modules" / ".bin"
    return [
        run_session(client, version(client.package, home), folder)
        for client in clients(environment["clients"])
    ]


def _command(client: Client, home: Path, *, is_python: bool) -> list[str]:
    """What runs the program of a client in its environment."""
    executables = home / "bin" if is_python else home / "node_modules" / ".bin"
    if client.program == AGENTS:
        return [*client.command(sys.executable), str(executables)]
    return (
        client.command(str(executables / "python")) if is_python else client.command("node", home)
    )


def _install_python(packages: Sequence[str], home: Path) -> str:
    """Install packages. Returns the problem; empty if there is none."""
    uv = [str(Path(sys.executable).parent / "uv")]
    return _run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)]) or _run(
        [*uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), *packages]
    )


def _install_node(packages: Sequence[str], home: Path) -> str:
    """As `_install_python`. Programs are copied, because Node looks for packages beside them."""
    (home / "package.json").write_text('{"private": true, "type": "module"}')
    for program in (program for folder in FOLDERS for program in folder.glob("*.mjs")):
        shutil.copy(program, home)
    quiet = ["--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps"]
    return _run(["npm", "install", *quiet, *packages], cwd=home)


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    try:
        completed = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not installed: {error}"
    return completed.stderr[-1000:] if completed.returncode else ""


def _python_version(package: str, home: Path) -> str:
    program = f"from importlib.metadata import version; print(version({package!r}))"
    command = [str(home / "bin" / "python"), "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _node_version(package: str, home: Path) -> str:
    described = json.loads((home / "node_modules" / package / "package.json").read_text())
    return str(described["version"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
