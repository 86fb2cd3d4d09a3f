"""Runs the programs of tests/clients/matrix with clients that others wrote, and lists the results.

Each program does what applications do with its client: an answer, a stream, a tool loop whose
history is sent again, structured output, an error, and a cancelled stream. It prints the problem of
each check as JSON, empty if it passed. `make test-clients ARGS=--write` writes the table of
docs/use/clients.md.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
FOLDERS: Final = [ROOT / "tests" / "clients" / name for name in ("matrix", "more")]
"""Of programs. Those with clients that `make test-clients` tries too may be in the second one."""
DOCUMENT = ROOT / "docs" / "use" / "clients.md"
BEGIN, END = "<!-- clients: made by make test-clients ARGS=--write -->", "<!-- /clients -->"
CHECKS: Final = ("answer", "stream", "tools", "structured", "error", "cancel")
NOT_OFFERED: Final = "not offered"
TIMEOUT_S: Final = 240


@dataclass(frozen=True, slots=True)
class Client:
    """A client: its name, its program, the lock file of its packages, the package whose version is
    listed, and the program's argument. Programs of `agents` run with Corral's packages, and start
    a command of Node."""

    name: str
    program: str
    lock: str
    package: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A client's name and version, and the problem of each check, empty if it passed."""

    name: str
    version: str
    problems: dict[str, str]

    @property
    def failures(self) -> dict[str, str]:
        """The checks that failed."""
        return {
            name: problem
            for name, problem in self.problems.items()
            if problem and problem != NOT_OFFERED
        }


CLIENTS: Final = (
    Client("OpenAI for Python", "openai_sdk.py", "clients", "openai"),
    Client(
        "LangChain, `langchain-openai`",
        "langchain_models.py",
        "clients",
        "langchain-openai",
        "langchain-openai",
    ),
    Client("pydantic-ai", "pydantic_ai_models.py", "clients", "pydantic-ai-slim", "chat"),
    Client("`llm`", "llm_command.py", "clients", "llm"),
    Client("litellm", "litellm_sdk.py", "clients-litellm", "litellm"),
    Client(
        "LlamaIndex, `OpenAILike`",
        "llama_index_llm.py",
        "clients-litellm",
        "llama-index-llms-openai-like",
    ),
    Client("instructor", "instructor_client.py", "clients-litellm", "instructor"),
    Client("DSPy", "dspy_program.py", "clients-litellm", "dspy"),
    Client("litellm's proxy", "litellm_proxy.py", "litellm-proxy", "litellm"),
    Client("Open WebUI's backend", "open_webui_backend.py", "open-webui", "open-webui"),
    Client("Vercel AI SDK", "ai_sdk_providers.mjs", "node", "ai", "@ai-sdk/openai-compatible"),
    Client("OpenAI for Node", "openai_node.mjs", "node", "openai"),
    Client("Codex", "coding_agents.py", "agents", "@openai/codex", "codex"),
    Client("Continue's `cn`", "coding_agents.py", "agents", "@continuedev/cli", "continue"),
    Client("Claude Code", "coding_agents.py", "agents", "@anthropic-ai/claude-code", "claude-code"),
)
OTHERS: Final = (
    Client("Anthropic for Python", "", "anthropic-0.80.0", "anthropic"),
    Client("Anthropic for Python", "", "anthropic-2.10.0", "anthropic"),
    Client("Anthropic for Node", "", "node", "@anthropic-ai/sdk"),
    Client("Ollama for Python", "", "clients", "ollama"),
    Client("Ollama for Node", "", "node", "ollama"),
    Client("`langchain-ollama`", "", "clients", "langchain-ollama"),
    Client("OpenAI's Agents SDK", "", "clients", "openai-agents"),
    Client("lm-eval", "", "lm-eval", "lm-eval"),
    Client("openapi-python-client", "", "openapi-client", "openapi-python-client"),
    Client("llmprobe", "", "llmprobe", "llmprobe"),
)
"""Clients that `make test-clients` runs with tests of their own."""
NODE: Final = {
    "node": "tests/clients",
    "agents": "tests/clients",
    "llmprobe": "tests/outside/llmprobe",
}
"""The folders of the packages for Node, by lock."""


def run_clients(base_url: str, command_of: Callable[[str], Sequence[str] | None]) -> list[Row]:
    """Run all clients against a server, and print a line for each.

    `command_of` returns the command of an interpreter with the packages of a lock file; None skips
    its clients.
    """
    rows = []
    for client in CLIENTS:
        command = command_of(client.lock)
        if command is None:
            print(f"SKIPPED {client.name}: its packages cannot be installed here")
            continue
        program = [*command, str(program_path(client.program)), *client.argument.split()]
        row = Row(client.name, _version(client), run_program(program, base_url))
        rows.append(row)
        print_row(row)
    return rows


def program_path(name: str) -> Path:
    """Where a program is."""
    return next(folder / name for folder in FOLDERS if (folder / name).exists())


def run_program(program: Sequence[str], base_url: str, **variables: str) -> dict[str, str]:
    """The problems of a program's checks. One that fails as a whole has its output at the first."""
    environment = {
        **os.environ,
        "CORRAL_BASE_URL": base_url,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    completed = subprocess.run(
        program, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    lines = completed.stdout.strip().splitlines()
    if completed.returncode != 0 or not lines:
        return {"answer": completed.stderr[-2000:] or f"exit code {completed.returncode}"}
    problems: dict[str, str] = json.loads(lines[-1])
    return problems


def print_row(row: Row) -> None:
    """Print a line for a client, and one for each check that failed."""
    print(f"{'FAILED' if row.failures else 'passed'} {row.name} {row.version}", flush=True)
    for check, problem in row.failures.items():
        print(f"  {check}: {problem}")


def _version(client: Client) -> str:
    if client.lock in NODE:
        packages = json.loads((ROOT / NODE[client.lock] / "package.json").read_text())
        return str(packages["dependencies"][client.package])
    lock = (ROOT / "requirements" / f"{client.lock}.txt").read_text()
    found = re.search(rf"^{re.escape(client.package)}==([^ ;]+)", lock, re.MULTILINE)
    if found is None:
        raise ValueError(f"requirements/{client.lock}.txt has no {client.package}")
    return found[1]


def result_table(rows: Sequence[Row]) -> str:
    """The results as a table in Markdown."""
    lines = [
        f"| client | version | {' | '.join(CHECKS)} |",
        "|---|---|" + "---|" * len(CHECKS),
    ]
    for row in rows:
        cells = (_cell(row.problems.get(check, "")) for check in CHECKS)
        lines.append(f"| {row.name} | {row.version} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(problem: str) -> str:
    if problem == NOT_OFFERED:
        return "-"
    return "no" if problem else "yes"


def write_table(rows: Sequence[Row]) -> None:
    """Write the table into the document, and the other clients below."""
    others = [f"{client.name} {_version(client)}" for client in OTHERS]
    below = f"With tests of their own: {', '.join(others)}."
    write_between(BEGIN, END, f"{result_table(rows)}\n\n{below}")


def write_between(begin: str, end: str, text: str) -> None:
    """Replace the text between two marks of the document."""
    head, _, rest = DOCUMENT.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    DOCUMENT.write_text(f"{head}{begin}\n{text}\n{end}{tail}")
