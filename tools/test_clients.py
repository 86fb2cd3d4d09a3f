"""Runs the client tests of tests/clients/ against a server of its own, for `make test-clients`.

The tests are those of another language's test runner: this starts `corral up` on free ports with
the bundled model, installs the locked client, and lets the runner speak last.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.corral_server import running_server

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "tests" / "clients"


def main() -> int:
    """Run the tests; 0 when they pass, or when this machine has no Node."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        print(f"SKIPPED tests/clients/*.test.mjs: no {' and no '.join(missing)} here")
        return 0
    quiet = ["npm", "ci", "--silent", "--ignore-scripts"]
    if subprocess.run(quiet, cwd=CLIENTS, check=False).returncode != 0:
        print("npm ci failed in tests/clients: is the package registry reachable?", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as data_dir, running_server(Path(data_dir)) as base_url:
        environment = {**os.environ, "CORRAL_BASE_URL": base_url}
        programs = sorted(path.name for path in CLIENTS.glob("*.test.mjs"))
        command = ["node", "--test", "--test-reporter=spec", *programs]
        return subprocess.run(command, cwd=CLIENTS, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
