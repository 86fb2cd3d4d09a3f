"""Sessions of coding agents over the real engine, for `make test-clients` and `make more-clients`:
runs tests/clients/matrix/agent_sessions.py, and writes the table of docs/use/agents.md."""

import datetime
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tools.client_table import TABLE, Client, Section, run_program

SECTION: Final = Section("agents.md", "agents", "make test-clients and make more-clients")
HEAD: Final = (
    "| agent | version | first prompt | last prompt | turns | reused | after a restart | tried |"
)
PROGRAM: Final = "agent_sessions.py"
LEAST_REUSED: Final = 0.98
TIMEOUT_S: Final = 600


@dataclass(frozen=True, slots=True)
class AgentSession:
    """What the session of an agent has shown; `printed` is what its program printed."""

    name: str
    version: str
    printed: Mapping[str, Any]

    @property
    def failures(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        if "turns" not in self.printed:
            return [*self.printed.values()]
        shares = {name: self.printed[name] for name in ("reused", "reused_after_restart")}
        return [f"{name}: {share}" for name, share in shares.items() if share < LEAST_REUSED]

    def line(self) -> str:
        """Its line of the table."""
        sizes = [f"{self.printed[f'{name}_prompt_tokens']:,}" for name in ("first", "last")]
        shares = [f"{self.printed[name]:.3f}" for name in ("reused", "reused_after_restart")]
        day = f"{datetime.datetime.now(datetime.UTC).date():%Y-%m-%d}"
        cells = (self.name, self.version, *sizes, self.printed["turns"], *shares, day)
        return f"| {' | '.join(map(str, cells))} |"


def run_session(client: Client, version: str, folder: Path | None = None) -> AgentSession:
    """Run the session of an agent, whose executable is in a folder or in tests/clients, and print
    what it has shown."""
    command = replace(client, program=PROGRAM).command(sys.executable)
    command += [] if folder is None else [str(folder)]
    printed = run_program(command, "", TIMEOUT_S)
    session = AgentSession(client.name, version, printed)
    outcome = "FAILED" if session.failures else "passed"
    print(f"{outcome} session of {client.name} {version} {dict(printed)}", flush=True)
    return session


def write_sessions(sessions: Sequence[AgentSession]) -> None:
    """Write those without failures into the table; the lines of other agents stay."""
    lines = {each.name: each.line() for each in sessions if not each.failures}
    environments = (*TABLE["node"], *TABLE["python"])
    others = [client["name"] for each in environments for client in each["clients"]]
    SECTION.write_rows(HEAD, lines, [*(each["name"] for each in TABLE["matrix"]), *others])
