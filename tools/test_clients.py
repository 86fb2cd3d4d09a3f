"""Run the tests of tests/clients/ against a new server, for `make test-clients`.

Starts `corral up` on free ports with the bundled model and runs two sets of tests: the tests for
Node with its own test runner, and Python programs that use Anthropic's client or libraries built on
OpenAI's. The output of each program is compared with `EXPECTED`. Then the clients of
`client_matrix.py` run, with `--write` also for the table in docs/use/clients.md, and the tests
beside transformers, with lm-eval, with a generated client, with oidc-provider and with llmprobe.
These libraries have lock files and virtual environments separate from Corral's.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.model_hub import run_model_hub
from tools.client_matrix import CLIENTS as ALL
from tools.client_matrix import run_clients, write_table
from tools.corral_server import running_server
from tools.document_clients import run_generated_client, run_llmprobe

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "tests" / "clients"
NODE_TIMEOUT_MS = 120_000
"""Time limit of each Node test, in milliseconds."""
_ANTHROPIC = {
    "retrieved": True,
    "same_text": True,
    "reason": ["end_turn", "end_turn"],
    "counted": True,
    "cached": True,
    "parsed": "City",
    "request_id": True,
    "call": ["get_weather", ["city"], "tool_use"],
    "answered": "text",
    "missing": "not_found_error",
    "too_long": True,
    "after_leaving": "message",
    "results": {"bad": "errored", "good": "succeeded"},
    "message": "assistant",
    "listed": True,
    "deleted": "message_batch_deleted",
}
EXPECTED = {
    ("anthropic-0.80.0", "anthropic_messages.py"): _ANTHROPIC,
    ("anthropic-2.10.0", "anthropic_messages.py"): _ANTHROPIC,
    ("clients", "agents_sdk.py"): {"streamed": True, "items": 4, "called": 1, "output": "sunny"},
    ("clients", "ollama_client.py"): {
        "same_text": True,
        "counts": True,
        "done": [True, "stop"],
        "calls": ["get_weather"],
        "answered": True,
        "formed": True,
        "continued": True,
        "loaded": "load",
        "vectors": [2, True],
        "listed": True,
        "running": ["demo-chat:latest"],
        "family": "llama",
        "pulled": "success",
        "error": [404, "model 'missing' not found"],
        "after_leaving": "assistant",
    },
    ("clients", "ollama_models.py"): {
        "statuses": ["pulling manifest", "success"],
        "digests": True,
        "again": "success",
        "shown": "llama",
        "copied": "success",
        "listed": ["hf.co/owner/models:Q8_0", "mine:latest"],
        "answered": True,
        "deleted": ["success", "success"],
        "left": [],
        "missing": 404,
        "registry": [400, "write hf.co/OWNER/REPOSITORY:QUANTIZATION"],
        "quantization": [400, "demo-Q8_0.gguf"],
    },
    ("clients", "langchain_ollama_chat.py"): {
        "same_text": True,
        "tokens": True,
        "tools": ["get_weather"],
        "answered": True,
        "form": True,
        "vectors": 2,
    },
    ("clients", "langchain_responses.py"): {
        "same_text": True,
        "chained": True,
        "tools": ["get_weather"],
        "form": True,
        "tokens": True,
    },
}
"""JSON fields that each program must print, by its lock file and name; its other fields are not
compared."""


def main() -> int:
    """Run all tests. Returns 0 if they pass; the Node tests are skipped if Node is missing."""
    with (
        tempfile.TemporaryDirectory() as data_dir,
        run_model_hub({"demo-Q8_0.gguf": BUNDLED_PATH.read_bytes()}) as hub,
        running_server(Path(data_dir), variables=hub.variables) as base_url,
    ):
        failures = run_node(base_url) or run_programs(base_url) or run_matrix(base_url)
    return (
        failures
        or run_beside("transformers", "CORRAL_TRANSFORMERS", "transformers")
        or run_beside("lm-eval", "CORRAL_LM_EVAL", "lm_eval")
        or run_generated_client(install("openapi-client"))
        or run_with_node_packages("oidc")
        or run_probe()
    )


def run_node(base_url: str) -> int:
    """Run the Node tests. Returns the exit code; 0 if Node or npm is missing."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        print(f"SKIPPED tests/clients/*.test.mjs: {' and '.join(missing)} not found")
        return 0
    if not install_node_packages(CLIENTS):
        return 1
    environment = {**os.environ, "CORRAL_BASE_URL": base_url}
    tests = sorted(path.name for path in CLIENTS.glob("*.test.mjs"))
    options = ["--test-reporter=spec", f"--test-timeout={NODE_TIMEOUT_MS}"]
    command = ["node", "--test", *options, *tests]
    return subprocess.run(command, cwd=CLIENTS, env=environment, check=False).returncode


def install_node_packages(folder: Path) -> bool:
    """Install the packages of a folder's lock file. Returns whether it succeeded."""
    quiet = ["npm", "ci", "--silent", "--ignore-scripts"]
    if subprocess.run(quiet, cwd=folder, check=False).returncode == 0:
        return True
    problem = f"npm ci failed in {folder.relative_to(ROOT)}; is the package registry reachable?"
    print(problem, file=sys.stderr)
    return False


def run_probe() -> int:
    """Run llmprobe. Returns the exit code; 0 if Node or npm is missing."""
    if shutil.which("npm") is None:
        print("SKIPPED llmprobe: npm not found")
        return 0
    is_installed = install_node_packages(ROOT / "tests" / "outside" / "llmprobe")
    return run_llmprobe() if is_installed else 1


def run_with_node_packages(name: str) -> int:
    """Run the tests in a folder of tests/outside with its packages for Node. Returns the exit code;
    0 if Node or npm is missing."""
    folder = ROOT / "tests" / "outside" / name
    if shutil.which("npm") is None:
        print(f"SKIPPED tests/outside/{name}: npm not found")
        return 0
    if not install_node_packages(folder):
        return 1
    command = [sys.executable, "-m", "pytest", "-q", str(folder)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def run_programs(base_url: str) -> int:
    """Run the programs. Returns 0 if each printed the expected fields."""
    return sum(not run_program(lock, name, base_url) for lock, name in EXPECTED)


def run_matrix(base_url: str) -> int:
    """Run the clients of the table. Returns the number that failed; with `--write` as an argument,
    writes the table if none did and none was skipped."""

    def command_of(lock: str) -> list[str] | None:
        if lock not in ("node", "agents"):
            supported = lock != "open-webui" or sys.version_info < (3, 13)
            return [str(install(lock))] if supported else None
        node = shutil.which("node")
        if node is None or not (CLIENTS / "node_modules").is_dir():
            return None
        return [node if lock == "node" else sys.executable]

    rows = run_clients(base_url, command_of)
    failed = sum(bool(row.failures) for row in rows)
    if "--write" in sys.argv[1:] and not failed and len(rows) == len(ALL):
        write_table(rows)
    return failed


def run_beside(name: str, variable: str, folder: str) -> int:
    """Run the tests in a folder of tests/outside with the Python that has the packages of a lock
    file in an environment variable. Returns the exit code."""
    environment = {**os.environ, variable: str(install(name))}
    command = [sys.executable, "-m", "pytest", "-q", f"tests/outside/{folder}"]
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


def run_program(lock: str, name: str, base_url: str) -> bool:
    """Run a program with the packages of a lock file. Returns whether it exited with 0 and printed
    the expected fields."""
    python = install(lock)
    environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
    environment.pop("PYTHONPATH", None)
    program = [python, CLIENTS / "programs" / name]
    completed = subprocess.run(
        program, env=environment, capture_output=True, text=True, check=False
    )
    output = json.loads(completed.stdout) if completed.returncode == 0 else {}
    expected = EXPECTED[lock, name]
    passed = {key: output.get(key) for key in expected} == expected
    problem = "" if passed else completed.stderr
    print(f"{'passed' if passed else 'FAILED'} {name} ({lock}): {completed.stdout}{problem}")
    return passed


if __name__ == "__main__":
    sys.exit(main())
