"""The commands of the README run as they are written, in order, on their default ports.

`make run` itself installs; what it starts is `corral up`.
"""

from pathlib import Path

import pytest

from tests.support.shell_blocks import WAIT, blocks, needs_own_network, run_script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280), needs_own_network]


def test_the_readme_runs_as_written(tmp_path: Path) -> None:
    """First requests and the operators' commands beside `make run`, then those that follow it."""
    requests = [each for each in blocks("README.md", "First requests") if "buf curl" not in each]
    beside, after = blocks("README.md", "For operators")
    *checks, up = after.strip().splitlines()
    output = run_script(
        [
            ".venv/bin/corral up >up.log 2>&1 &",  # as `make run` does once it has installed
            f"{WAIT} http://127.0.0.1:8080/ready",
            "cd repository",
            *requests,
            beside,
            "cd ..; kill %1; wait %1",
            *checks,
            f"{up.partition('#')[0]} >keys.log 2>&1 &",
            f"{WAIT} http://127.0.0.1:8080/ready",
            "curl --silent http://127.0.0.1:8080/v1/models",
        ],
        tmp_path,
    ).stdout

    assert "I see a blue heart and a green ring." in output
    assert "key (shown once): sk-corral-" in output
    assert "the database is at revision" in output
    assert '"type":"authentication_error"' in output.replace(" ", "")
