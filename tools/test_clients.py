"""Runs the tests of tests/clients against a new server, for `make test-clients`.

Starts `corral up` on free ports with the bundled model and runs the tests for Node with its own
test runner, and then programs of tests/clients/clients.toml: those that print what they found, and
those of the first table of docs/use/clients.md, which `--write` writes. Then follow the tests
beside transformers, with lm-eval, with a generated client, with oidc-provider and with llmprobe.
These libraries have lock files and virtual environments separate from Corral's.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.model_hub import run_model_hub
from tools.agent_sessions import run_session, write_sessions
from tools.client_table import (
    CLIENTS,
    ROOT,
    TABLE,
    Client,
    Row,
    Section,
    clients,
    result_table,
    run_program,
)
from tools.corral_server import running_server

SECTION: Final = Section("clients.md", "clients", "make test-clients")
NODE_TIMEOUT_MS: Final = 120_000
"""Time limit of each Node test, in milliseconds."""
OUTSIDE: Final = ROOT / "tests" / "outside"
NODE_PACKAGES: Final = {"node": CLIENTS, "agents": CLIENTS, "llmprobe": OUTSIDE / "llmprobe"}
"""The folders of the packages for Node, by lock."""
MODEL: Final = "demo-chat"
GENERATED_CLIENT: Final = Path(__file__).with_name("generated_client_program.py")
WARNINGS: Final = ["WARNING parsing GET /v1/messages/batches/{batch_id}/results within default."]
"""The generator does not know lines of JSON."""
TWO_BODIES: Final = "generated.api.default.create_adapter_v1_adapters_post"
"""It forgets an import where a body is a form or JSON."""
FOUND: Final = {
    "broken": [TWO_BODIES],
    "error": [404, "model_not_found"],
    "response": ["completed", "MessageItem"],
    "message": ["assistant", "end_turn"],
}
"""What the program finds, beside an answer and the models."""
SURFACES: Final = (
    *("models", "chat", "responses", "messages", "count-tokens", "embeddings", "completions"),
)
"""Routes that llmprobe requires and the bundled model can show."""


def main(arguments: list[str]) -> int:
    """Run all tests. Returns 0 if they pass; what needs Node is skipped if Node or npm is missing.
    With `--write`, writes the table if no client of it failed and none was skipped."""
    with (
        tempfile.TemporaryDirectory() as data_dir,
        run_model_hub({"demo-Q8_0.gguf": BUNDLED_PATH.read_bytes()}) as hub,
        running_server(Path(data_dir), variables=hub.variables) as base_url,
    ):
        failures = (
            with_node_packages(CLIENTS, lambda: run_node_tests(base_url))
            or run_programs(base_url)
            or run_table(base_url, writes="--write" in arguments)
            or run_sessions(writes="--write" in arguments)
        )
    return (
        failures
        or run_tests("transformers", CORRAL_TRANSFORMERS=str(install("transformers")))
        or run_tests("lm_eval", CORRAL_LM_EVAL=str(install("lm-eval")))
        or run_generated_client(install("openapi-client"))
        or with_node_packages(OUTSIDE / "oidc", lambda: run_tests("oidc"))
        or with_node_packages(OUTSIDE / "llmprobe", run_llmprobe)
    )


def with_node_packages(folder: Path, run: Callable[[], int]) -> int:
    """Install the packages of a folder's lock file, and run. Returns the exit code; 0 if Node or
    npm is missing."""
    name = folder.relative_to(ROOT)
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        print(f"SKIPPED {name}: {' and '.join(missing)} not found")
        return 0
    quiet = ["npm", "ci", "--silent", "--ignore-scripts"]
    if subprocess.run(quiet, cwd=folder, check=False).returncode == 0:
        return run()
    print(f"npm ci failed in {name}; is the package registry reachable?", file=sys.stderr)
    return 1


def run_node_tests(base_url: str) -> int:
    """Run the tests for Node. Returns the exit code."""
    environment = {**os.environ, "CORRAL_BASE_URL": base_url}
    tests = sorted(path.name for path in CLIENTS.glob("*.test.mjs"))
    options = ["--test-reporter=spec", f"--test-timeout={NODE_TIMEOUT_MS}"]
    command = ["node", "--test", *options, *tests]
    return subprocess.run(command, cwd=CLIENTS, env=environment, check=False).returncode


def run_tests(folder: str, **variables: str) -> int:
    """Run the tests in a folder of tests/outside with environment variables. Returns the exit
    code."""
    command = [sys.executable, "-m", "pytest", "-q", str(OUTSIDE / folder)]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def install(name: str) -> Path:
    """Install the packages of a lock file into `.venv-NAME`, unless they are installed.

    Returns the interpreter with them. Exits if pip fails.
    """
    lock, folder = ROOT / "requirements" / f"{name}.txt", ROOT / f".venv-{name}"
    python, stamp = folder / "bin" / "python", folder / f"{name}.lock"
    if stamp.is_file() and stamp.read_bytes() == lock.read_bytes():
        return python
    venv.create(folder, clear=True, with_pip=True)
    # Lock files are complete; pip refuses hashes if a package requires another with an extra.
    command = ["-m", "pip", "--no-input", "install", "--quiet", "--no-deps", "--require-hashes"]
    if subprocess.run([python, *command, "-r", str(lock)], check=False).returncode != 0:
        sys.exit(f"cannot install requirements/{name}.txt; see the output of pip above")
    shutil.copy(lock, stamp)
    return python


def run_programs(base_url: str) -> int:
    """Run the programs that print what they found. Returns how many failed, or printed other
    fields than the table has."""
    failed = 0
    for program in TABLE["programs"]:
        for lock in program["locks"]:
            command = [install(lock), CLIENTS / "programs" / program["name"]]
            environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
            environment.pop("PYTHONPATH", None)
            completed = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            output = json.loads(completed.stdout) if completed.returncode == 0 else {}
            expected = program["expected"]
            passed = {key: output.get(key) for key in expected} == expected
            problem = completed.stdout if passed else completed.stdout + completed.stderr
            print_result(passed, f"{program['name']} ({lock}): {problem}")
            failed += not passed
    return failed


def run_table(base_url: str, *, writes: bool) -> int:
    """Run the clients of the table. Returns the number that failed."""
    rows = []
    for client in clients(TABLE["matrix"]):
        interpreter = find_interpreter(client.lock)
        if interpreter is None:
            print(f"SKIPPED {client.name}: its packages cannot be installed here")
            continue
        problems = run_program(client.command(interpreter), base_url)
        rows.append(Row(client.name, version(client), problems))
        rows[-1].print()
    failed = sum(bool(row.failures) for row in rows)
    if writes and not failed and len(rows) == len(TABLE["matrix"]):
        others = (f"{each.name} {version(each)}" for each in clients(TABLE["with_own_tests"]))
        below = f"With tests of their own: {', '.join(others)}."
        SECTION.write([*result_table(rows), "", below])
    return failed


def run_sessions(*, writes: bool) -> int:
    """Run the sessions of the coding agents of the table. Returns the number that failed."""
    if find_interpreter("agents") is None:
        return 0
    agents = [client for client in clients(TABLE["matrix"]) if client.lock == "agents"]
    sessions = [run_session(client, version(client)) for client in agents]
    if writes:
        write_sessions(sessions)
    return sum(bool(session.failures) for session in sessions)


def find_interpreter(lock: str) -> str | None:
    """The command that runs programs with the packages of a lock; None if they cannot be
    installed."""
    if lock not in ("node", "agents"):
        supported = lock != "open-webui" or sys.version_info < (3, 13)
        return str(install(lock)) if supported else None
    node = shutil.which("node") if (CLIENTS / "node_modules").is_dir() else None
    return sys.executable if node and lock == "agents" else node


def version(client: Client) -> str:
    """The version of a client in its lock file."""
    if client.lock in NODE_PACKAGES:
        packages = json.loads((NODE_PACKAGES[client.lock] / "package.json").read_text())
        return str(packages["dependencies"][client.package])
    lock = (ROOT / "requirements" / f"{client.lock}.txt").read_text()
    found = re.search(rf"^{re.escape(client.package)}==([^ ;]+)", lock, re.MULTILINE)
    if found is None:
        raise ValueError(f"requirements/{client.lock}.txt has no {client.package}")
    return found[1]


def run_generated_client(python: Path) -> int:
    """Generate a client, import all of it, and make requests with it. Returns the exit code.

    `python` has the packages of requirements/openapi-client.txt.
    """
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder, "data")
        data_dir.mkdir()
        with running_server(data_dir) as base_url:
            url = base_url.removesuffix("/v1")
            generate = ["-m", "openapi_python_client", "generate", "--url", f"{url}/openapi.json"]
            generate += ["--meta", "none", "--output-path", str(Path(folder, "generated"))]
            config = Path(folder, "config.yml")
            config.write_text("literal_enums: true\n")  # some values differ only in their case
            generate += ["--config", str(config)]
            output = _run_python(python, generate)
            _run_python(python, [str(GENERATED_CLIENT), folder, url, MODEL])
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text())
    problems = re.findall("^(?:WARNING|Unable to process).*", output, re.MULTILINE)
    passed = (
        problems == WARNINGS
        and "Paris" in found.pop("answer")
        and MODEL in found.pop("models")
        and found == FOUND
    )
    return print_result(passed, f"openapi-python-client: {problems} {found}")


def run_llmprobe() -> int:
    """Run llmprobe. Returns 0 if each requirement of its routes is met. Its questions for large
    models are not judged."""
    program = OUTSIDE / "llmprobe" / "node_modules" / ".bin" / "llmprobe"
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as base_url:
        report = Path(folder, "report.json")
        options = ["--model", MODEL, "--no-bench", "--no-save", "--no-color", "--save", str(report)]
        subprocess.run([str(program), base_url, *options], capture_output=True, check=False)
        found: dict[str, Any] = json.loads(report.read_text())
    tiers = {each["tier"]: each["missing"] for each in found["coverage"]["byTier"]}
    surfaces = {each["surface"]: each["pct"] for each in found["conformance"]["bySurface"]}
    passed = surfaces == dict.fromkeys(SURFACES, 100) and tiers["core"] == []
    return print_result(passed, f"llmprobe: {surfaces} {tiers}")


def _run_python(python: Path, arguments: list[str]) -> str:
    """Run a program. Returns its output. Raises CalledProcessError."""
    programs = str(python.parent)  # of the formatter that the generator starts
    environment = {"PATH": programs + os.pathsep + os.environ["PATH"], "NO_PROXY": "*"}
    ended = subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return ended.stdout + ended.stderr


def print_result(passed: bool, found: str) -> int:
    """Print a line. Returns 0 if it passed."""
    print(f"{'passed' if passed else 'FAILED'} {found}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
