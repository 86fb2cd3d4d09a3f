"""Runs the programs of tests/clients/more, and one of tests/clients/matrix, with clients of others,
for `make more-clients`.

The packages are installed by name, in their newest releases, into throwaway environments; so this
is no part of the tests. `ARGS=--write` writes the results with versions and date into the second
table of docs/use/clients.md, where rows of other clients stay; other arguments are names of
environments that are tried alone.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tools.client_matrix import (
    CHECKS,
    DOCUMENT,
    FOLDERS,
    Row,
    print_row,
    program_path,
    result_table,
    run_program,
    write_between,
)
from tools.corral_server import running_server

BEGIN: Final = "<!-- more clients: made by make more-clients ARGS=--write -->"
END: Final = "<!-- /more clients -->"
INSTALL_TIMEOUT_S: Final = 900


class Tried(NamedTuple):
    """A client: its name in the table, the package whose version is listed, and the argument of the
    environment's program, or of its own."""

    name: str
    package: str
    argument: str
    program: str = ""


class Environment(NamedTuple):
    """Packages that are installed together, and the program of their clients."""

    name: str
    packages: str
    program: str
    clients: Sequence[Tried]


def _same(prefix: str, names: str) -> list[Tried]:
    """Clients that are called as their packages."""
    return [Tried(f"{prefix}`{name}`", name, name) for name in names.split()]


PYTHON: Final = (
    Environment(
        "sdks",
        "openai groq together cerebras-cloud-sdk huggingface_hub fireworks-ai portkey-ai langfuse",
        "openai_shaped.py",
        [
            Tried("OpenAI for Python, `AzureOpenAI`", "openai", "azure"),
            Tried("Groq for Python", "groq", "groq"),
            Tried("Together for Python", "together", "together"),
            Tried("Cerebras for Python", "cerebras-cloud-sdk", "cerebras-cloud-sdk"),
            Tried("Hugging Face for Python", "huggingface_hub", "huggingface_hub"),
            Tried("Fireworks for Python", "fireworks-ai", "fireworks-ai"),
            Tried("Portkey for Python", "portkey-ai", "portkey-ai"),
            Tried("Langfuse's `openai`", "langfuse", "langfuse"),
        ],
    ),
    Environment(
        "langchain",
        "langchain-openai langchain-anthropic langchain-ollama langchain-groq langchain-mistralai "
        "langchain-deepseek langchain-xai langchain-together langchain-cerebras",
        "langchain_models.py",
        [
            Tried("LangChain, `AzureChatOpenAI`", "langchain-openai", "azure"),
            *_same(
                "LangChain, ",
                "langchain-anthropic langchain-ollama langchain-groq langchain-mistralai "
                "langchain-deepseek langchain-xai langchain-together langchain-cerebras",
            ),
        ],
    ),
    Environment(
        "pydantic-ai",
        "pydantic-ai-slim[openai,anthropic,groq,mistral,huggingface]",
        "pydantic_ai_models.py",
        [
            Tried(f"pydantic-ai, {name}", "pydantic-ai-slim", argument)
            for name, argument in (
                ("Anthropic", "anthropic"),
                ("Groq", "groq"),
                ("Hugging Face", "huggingface"),
                ("Mistral", "mistral"),
                ("Ollama", "ollama"),
                ("responses", "responses"),
            )
        ],
    ),
    Environment(
        "haystack",
        "haystack-ai ollama-haystack anthropic-haystack",
        "haystack_generators.py",
        _same("Haystack, ", "haystack-ai ollama-haystack anthropic-haystack"),
    ),
    Environment(
        "autogen",
        "autogen-agentchat autogen-ext[openai]",
        "autogen_client.py",
        [Tried("AutoGen", "autogen-ext", "")],
    ),
    Environment(
        "smolagents",
        "smolagents[openai]",
        "smolagents_model.py",
        [Tried("smolagents", "smolagents", "")],
    ),
    Environment(
        "semantic-kernel",
        "semantic-kernel",
        "semantic_kernel_chat.py",
        [Tried("Semantic Kernel", "semantic-kernel", "")],
    ),
    Environment(
        "agno",
        "agno openai anthropic",
        "agno_agents.py",
        [
            Tried("Agno, chat", "agno", "chat"),
            Tried("Agno, responses", "agno", "responses"),
            Tried("Agno, Anthropic", "agno", "anthropic"),
        ],
    ),
    Environment(
        "guidance",
        "guidance openai",
        "guidance_models.py",
        [Tried("guidance", "guidance", "")],
    ),
)
_AI_SDK: Final = (
    "@ai-sdk/openai @ai-sdk/anthropic @ai-sdk/azure @ai-sdk/groq @ai-sdk/mistral @ai-sdk/deepseek "
    "@ai-sdk/togetherai @ai-sdk/xai @ai-sdk/cerebras @ai-sdk/fireworks ollama-ai-provider-v2"
)
NODE: Final = (
    Environment(
        "ai-sdk",
        f"ai@6 {_AI_SDK} zod",
        "ai_sdk_providers.mjs",
        [
            Tried("AI SDK, `@ai-sdk/openai`, chat", "@ai-sdk/openai", "@ai-sdk/openai#chat"),
            Tried(
                "AI SDK, `@ai-sdk/openai`, responses", "@ai-sdk/openai", "@ai-sdk/openai#responses"
            ),
            Tried("AI SDK, `@ai-sdk/azure`", "@ai-sdk/azure", "@ai-sdk/azure#chat"),
            *_same(
                "AI SDK, ",
                _AI_SDK.replace("@ai-sdk/openai ", "").replace("@ai-sdk/azure ", ""),
            ),
        ],
    ),
    Environment(
        "node-sdks",
        "openai groq-sdk together-ai @cerebras/cerebras_cloud_sdk @huggingface/inference",
        "openai_shaped.mjs",
        [
            Tried("OpenAI for Node, `AzureOpenAI`", "openai", "openai#azure"),
            Tried("Groq for Node", "groq-sdk", "groq-sdk"),
            Tried("Together for Node", "together-ai", "together-ai"),
            Tried(
                "Cerebras for Node",
                "@cerebras/cerebras_cloud_sdk",
                "@cerebras/cerebras_cloud_sdk",
            ),
            Tried("Hugging Face for Node", "@huggingface/inference", "@huggingface/inference"),
        ],
    ),
    Environment(
        "langchain-js",
        "@langchain/core @langchain/openai @langchain/anthropic @langchain/ollama @langchain/groq "
        "@langchain/mistralai @openai/agents openai zod portkey-ai",
        "langchain_models.mjs",
        [
            *_same(
                "LangChain.js, ",
                "@langchain/openai @langchain/anthropic @langchain/ollama @langchain/groq "
                "@langchain/mistralai",
            ),
            Tried("Portkey for Node", "portkey-ai", "portkey-ai", "openai_shaped.mjs"),
            Tried("Agents SDK for Node, chat", "@openai/agents", "chat", "agents_js.mjs"),
            Tried("Agents SDK for Node, responses", "@openai/agents", "responses", "agents_js.mjs"),
        ],
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Try the clients. Returns how many failed a check, or could not be installed."""
    only = [each for each in arguments if not each.startswith("--")]
    num_failed = 0
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as base_url:
        for environment in (*NODE, *PYTHON):
            if only and environment.name not in only:
                continue
            home = Path(folder, environment.name)
            home.mkdir()
            rows = []
            for row in _try_all(environment, home, base_url):
                rows.append(row)
                print_row(row)
            num_failed += sum(bool(row.failures) for row in rows)
            if "--write" in arguments:
                _write(rows)
            shutil.rmtree(home)
    return num_failed


def _write(rows: Sequence[Row]) -> None:
    """Write rows into the table; those of other clients stay."""
    _, _, rest = DOCUMENT.read_text().partition(BEGIN)
    written = rest.partition(END)[0].strip().splitlines()[2:]
    today = datetime.datetime.now(datetime.UTC).date()
    head, line, *new = result_table(rows).splitlines()
    known = {_name(each): each for each in written}
    known |= {_name(each): f"{each} {today:%Y-%m-%d} |" for each in new}
    names = [client.name for each in (*PYTHON, *NODE) for client in each.clients]
    lines = [known[name] for name in names if name in known]
    write_between(BEGIN, END, "\n".join([f"{head} tried |", f"{line}---|", *lines]))


def _name(line: str) -> str:
    return line.split("|")[1].strip()


def _try_all(environment: Environment, home: Path, base_url: str) -> Iterator[Row]:
    """The rows of the clients of an environment, which is installed into an empty folder."""
    is_python = environment in PYTHON
    install = _install_python if is_python else _install_node
    problem = install(environment.packages.split(), home)
    for client in environment.clients:
        if problem:
            yield Row(client.name, "", dict.fromkeys(CHECKS, problem))
            continue
        program = client.program or environment.program
        if is_python:
            command = [str(home / "bin" / "python"), str(program_path(program))]
        else:
            command = ["node", str(home / program)]
        version = _python_version if is_python else _node_version
        arguments = [client.argument] if client.argument else []
        problems = run_program([*command, *arguments], base_url, HOME=str(home))
        yield Row(client.name, version(client.package, home), problems)


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
            command,
            cwd=cwd,
            env={**os.environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_TIMEOUT_S,
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
