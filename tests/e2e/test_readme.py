"""The commands of the README run as they are written, in order, on their default ports.

`make run` itself installs; what it starts is `corral up`.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.test_house_rules import ROOT

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ALONE = ["unshare", "--map-root-user", "--net"]
"""A network of its own, in which every port is free."""
WAIT = "curl --silent --fail --retry 90 --retry-delay 1 --retry-all-errors --max-time 90"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        shutil.which("curl") is None
        or shutil.which("unshare") is None
        or subprocess.run([*ALONE, "ip", "link"], capture_output=True, check=False).returncode != 0,
        reason="needs curl, ip and the right to have a network of its own",
    ),
]


def blocks(heading: str) -> list[str]:
    """The shell blocks below a heading of the README, without what other tests run."""
    text = (ROOT / "README.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [block for block in BLOCK.findall(text) if "buf curl" not in block]


@pytest.mark.timeout(280)
def test_the_readme_runs_as_written(tmp_path: Path) -> None:
    """First requests and the operators' commands beside `make run`, then those that follow it."""
    beside, after = blocks("For operators")
    *checks, up = after.strip().splitlines()
    script = "\n".join(
        [
            "set -e; ip link set lo up; trap 'kill $(jobs -p); wait' EXIT",
            ".venv/bin/corral up >up.log 2>&1 &",  # as `make run` does once it has installed
            f"{WAIT} http://127.0.0.1:8080/ready",
            "cd repository",
            *blocks("First requests"),
            beside,
            "cd ..; kill %1; wait %1",
            *checks,
            f"{up.partition('#')[0]} >keys.log 2>&1 &",
            f"{WAIT} http://127.0.0.1:8080/ready",
            "curl --silent http://127.0.0.1:8080/v1/models",
        ]
    )
    (tmp_path / "repository").symlink_to(ROOT)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "gen")]),
    }
    result = subprocess.run(
        [*ALONE, "bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert result.returncode == 0, "\n".join([result.stdout, *logs])
    assert "I see a blue heart and a green ring." in result.stdout
    assert "key (shown once): sk-corral-" in result.stdout
    assert "the database is at revision" in result.stdout
    assert '"type":"authentication_error"' in result.stdout.replace(" ", "")
