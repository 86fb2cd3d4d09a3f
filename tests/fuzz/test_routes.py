"""schemathesis reads the OpenAPI document and tries every route, with valid and invalid requests.

A few for each route with every `make test`; `make fuzz` goes through all of its cases.
"""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.examples import TIMES, timeout
from tests.support.services import MODEL, Corral

pytestmark = pytest.mark.e2e

SCHEMATHESIS: Final = Path(sys.executable).with_name("schemathesis")
EXAMPLES: Final = 2 * TIMES
PHASES: Final = "fuzzing" if TIMES == 1 else "examples,coverage,fuzzing"
"""Its coverage phase alone makes 12,000 requests."""
SETTINGS: Final = Path(__file__).with_name("schemathesis.toml")
NOT_OFFERED: Final = re.compile("^/(api/(create|push)|slots/)")
NOT_OFFERED_POST: Final = "POST /props"
"""What other servers have and this one has not answers 501."""


@timeout(150)
def test_no_request_gets_a_server_error(corral: Corral, folder: Path) -> None:
    """The document is valid and describes all routes and their responses; none has 5xx."""
    command = [str(SCHEMATHESIS), "--config-file", str(SETTINGS)]
    command += ["run", f"{corral.url}/openapi.json"]
    command += ["--phases", PHASES, "--warnings", "off"]
    command += ["--exclude-path-regex", NOT_OFFERED.pattern, "--exclude-name", NOT_OFFERED_POST]
    command += ["--max-examples", str(EXAMPLES), "--seed", str(random.getrandbits(31))]
    command += ["--continue-on-failure", "--request-timeout", "60", "--workers", "2", "--no-color"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    with httpx.Client(base_url=corral.url, trust_env=False, timeout=20) as client:
        paths = client.get("/openapi.json").json()["paths"]
        models = client.get("/v1/models").json()["data"]
    offered = [each for path, each in paths.items() if not NOT_OFFERED.match(path)]
    num_operations = sum(map(len, offered)) - 1  # without NOT_OFFERED_POST

    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert f"Tested: {num_operations}\n" in ended.stdout
    assert re.search(r"(\d+) generated, \1 passed", ended.stdout)
    assert MODEL in {model["id"] for model in models}
