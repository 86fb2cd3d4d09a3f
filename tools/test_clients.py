"""Runs the client tests of tests/clients/ against a server of its own, for `make test-clients`.

The tests of Node are those of another language's test runner, which speaks last. The programs are
ordinary ones of libraries over the OpenAI client, which are locked apart from Corral and get an
environment of their own: this starts `corral up` on free ports with the bundled model, installs
both, and compares what the programs print with what their users expect.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tools.corral_server import running_server

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "tests" / "clients"
LOCK = ROOT / "requirements" / "clients.txt"
VENV = ROOT / ".venv-clients"
STAMP = VENV / "clients.lock"
NODE_PATIENCE_MS = 120_000
"""How long a test of Node may take: one that waits for an event that never comes has failed."""
EXPECTED = {
    "agents_sdk.py": {"streamed": True, "items": 4, "called": 1, "output": "sunny"},
    "langchain_responses.py": {
        "same_text": True,
        "chained": True,
        "tools": ["get_weather"],
        "form": True,
        "tokens": True,
    },
}
"""What each program prints as JSON, beside the model's own words."""


def main() -> int:
    """Run all of them; 0 when they pass. Without Node its part is left out."""
    with tempfile.TemporaryDirectory() as data_dir, running_server(Path(data_dir)) as base_url:
        return run_node(base_url) or run_programs(base_url)


def run_node(base_url: str) -> int:
    """The tests of Node; 0 too when this machine has none."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        print(f"SKIPPED tests/clients/*.test.mjs: no {' and no '.join(missing)} here")
        return 0
    quiet = ["npm", "ci", "--silent", "--ignore-scripts"]
    if subprocess.run(quiet, cwd=CLIENTS, check=False).returncode != 0:
        print("npm ci failed in tests/clients: is the package registry reachable?", file=sys.stderr)
        return 1
    environment = {**os.environ, "CORRAL_BASE_URL": base_url}
    tests = sorted(path.name for path in CLIENTS.glob("*.test.mjs"))
    options = ["--test-reporter=spec", f"--test-timeout={NODE_PATIENCE_MS}"]
    command = ["node", "--test", *options, *tests]
    return subprocess.run(command, cwd=CLIENTS, env=environment, check=False).returncode


def run_programs(base_url: str) -> int:
    """The programs of libraries over the client; 0 when each printed what it should."""
    if not install():
        print("the libraries of requirements/clients.txt cannot be installed", file=sys.stderr)
        return 1
    return sum(not passes(name, base_url) for name in EXPECTED)


def install() -> bool:
    """Fill the environment of the programs, unless it is full already."""
    if STAMP.is_file() and STAMP.read_bytes() == LOCK.read_bytes():
        return True
    venv.create(VENV, clear=True, with_pip=True)
    quiet = ["-m", "pip", "--no-input", "install", "--quiet", "--require-hashes", "-r", str(LOCK)]
    if subprocess.run([VENV / "bin" / "python", *quiet], check=False).returncode != 0:
        return False
    shutil.copy(LOCK, STAMP)
    return True


def passes(name: str, base_url: str) -> bool:
    """Whether a program ran to its end and saw what it should."""
    environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
    environment.pop("PYTHONPATH", None)
    program = [VENV / "bin" / "python", CLIENTS / "programs" / name]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    seen = json.loads(ran.stdout) if ran.returncode == 0 else {}
    expected = EXPECTED[name]
    passed = {key: seen.get(key) for key in expected} == expected
    print(f"{'passed' if passed else 'FAILED'} {name}: {ran.stdout}{'' if passed else ran.stderr}")
    return passed


if __name__ == "__main__":
    sys.exit(main())
