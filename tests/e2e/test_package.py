"""The wheel of Corral, installed where the repository is not."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import httpx
import pytest

from tests.architecture.test_house_rules import ROOT
from tests.support.processes import Program
from tests.support.services import environment

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment of its own, beside the packages of this one."""
    folder = tmp_path_factory.mktemp("package")
    prefix = folder / "prefix"
    pip = [sys.executable, "-m", "pip", "--no-input", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    build = [*pip, "wheel", *offline, "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    python = ["--python", str(prefix / "bin/python")]
    [wheel] = folder.glob("corral-*.whl")
    subprocess.run([*pip, *python, "install", *offline, str(wheel)], check=True)
    # A path in a file of a folder is added without the .pth files there, such as Corral's own.
    [installed] = prefix.glob("lib/python*/site-packages")
    (installed / "packages.pth").write_text(sysconfig.get_path("purelib"))
    return prefix / "bin/corral"


def run(corral: Path, folder: Path, *words: str) -> Program:
    """Start the command without the sources of this repository."""
    variables = environment(folder / "data") | {"PYTHONPATH": ""}
    return Program([corral, *words], environment=variables, directory=folder)


def test_the_installed_command_knows_its_version_and_settings(corral: Path, tmp_path: Path) -> None:
    """All services can be imported."""
    with run(corral, tmp_path, "--version") as version:
        assert version.wait() == 0
    with run(corral, tmp_path, "config", "check") as check:
        assert check.wait() == 0

    assert version.stdout[0].text.startswith("corral ")


def test_the_wheel_serves_the_bundled_model_and_the_page(corral: Path, tmp_path: Path) -> None:
    """Weights, projector, migrations, protos and the page are in it."""
    listeners = ("--listen", "--inference-listen", "--control-listen")
    addresses = [word for flag in listeners for word in (flag, "127.0.0.1:0")]
    with run(corral, tmp_path, "up", *addresses) as program:
        program.wait_for_line(r"Ctrl-C stops everything", stream="stdout")
        url = program.wait_for_line(r"OpenAI API +(http://\S+)/v1", stream="stdout")[1]
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            message = {"role": "user", "content": "What is the capital of France?"}
            body = {"model": "demo-chat", "messages": [message], "temperature": 0}
            answer = client.post("/v1/chat/completions", json=body).json()
            page = client.get("/ui/")
            stored = client.post("/v1/conversations", json={})

    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert (page.status_code, stored.status_code) == (200, 200)
    assert [line.text for line in program.stderr if '"error"' in line.text] == []
