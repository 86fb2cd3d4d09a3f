"""Coding agents of others without a terminal: how each is used, and a home in which `corral launch`
starts it, unmodified and with nothing configured."""

import os
import signal
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral_cli.launch.programs import PROGRAMS

PACKAGES: Final = Path(__file__).parents[1] / "clients" / "node_modules"
"""Of package.json there."""


@dataclass(frozen=True)
class Command:
    """How an agent is used without a terminal.

    Options before a prompt, those that continue the last session, if it can, its tool that reads a
    file, with the arguments for a path, and the options for a JSON Schema, which is in schema.json
    too. `module` is run by Node where the package's own executable needs an installation script.
    """

    options: Sequence[str]
    resume: Sequence[str] = ()
    reader: tuple[str, Callable[[str], dict[str, object]]] | None = None
    schema: Callable[[str], Sequence[str]] | None = None
    module: str = ""
    prints_errors: bool = True
    end: signal.Signals = signal.SIGTERM


COMMANDS: Final = {
    "codex": Command(
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        ("resume", "--last"),
        ("exec_command", lambda path: {"cmd": f"cat {path}"}),
        lambda _: ("--output-schema", "schema.json"),
    ),
    "continue": Command(("-p", "--auto"), ("--resume",), ("Read", lambda path: {"filepath": path})),
    "claude": Command(
        ("-p", "--allowedTools=Read"),
        ("--continue",),
        ("Read", lambda path: {"file_path": path}),
        lambda schema: (f"--json-schema={schema}",),
        "@anthropic-ai/claude-code/cli-wrapper.cjs",
    ),
    "qwen": Command(("--yolo",), ("--continue",), ("read_file", lambda path: {"file_path": path})),
    "pi": Command(
        ("-p",), ("--continue",), ("read", lambda path: {"path": path}), prints_errors=False
    ),
    "opencode": Command(("run",), ("--continue",), ("read", lambda path: {"filePath": path})),
    "cline": Command(
        ("--retries=1", "--json"),
        reader=("read_files", lambda path: {"files": [{"path": path}]}),
        end=signal.SIGKILL,  # it waits for the model's answer otherwise
    ),
    "gptme": Command(
        ("--non-interactive", "--tool-format=tool"),
        ("--resume",),
        ("shell", lambda path: {"command": f"cat {path}"}),
    ),
    "aider": Command(
        ("--yes-always", "--no-check-update", "--no-show-release-notes", "--no-git", "--message")
    ),
}


@dataclass
class CodingAgent:
    """An agent in its home, and the options of `corral launch` that name the server."""

    name: str
    home: Path
    server: Sequence[str] = ()

    @property
    def command(self) -> Command:
        return COMMANDS[self.name]

    async def start(self, *arguments: str) -> Process:
        """Start the agent, in a session of its own."""
        return await create_subprocess_exec(
            *(sys.executable, "-m", "corral_cli", "launch", self.name, *self.server, "--"),
            *(*self.command.options, *arguments),
            cwd=self.home,
            env={
                "PATH": f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(self.home),
                "NO_PROXY": "127.0.0.1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )

    async def ask(self, *arguments: str, errors_too: bool = False) -> str:
        """Run the agent to its end. Returns its output. Raises RuntimeError if it fails."""
        process = await self.start(*arguments)
        output, errors = await process.communicate()
        if process.returncode:
            raise RuntimeError((output + errors).decode())
        return (output + errors if errors_too else output).decode()


def prepare_home(home: Path, name: str, packages: Path | None) -> Path:
    """Create the home of an agent, with its executable of a folder (default: that of the packages
    of tests/clients). Returns it."""
    executable = home / "bin" / PROGRAMS[name].command
    executable.parent.mkdir(parents=True)
    module = COMMANDS[name].module
    place = packages or PACKAGES / ".bin"
    command = f"node {PACKAGES / module}" if module else place / PROGRAMS[name].command
    executable.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    executable.chmod(0o755)
    return home
