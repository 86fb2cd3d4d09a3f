"""Models are pulled, copied and deleted over Ollama's API, in front of a server like the Hub."""

import hashlib
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.model_hub import ModelHub, run_model_hub
from tests.support.processes import clean_environment
from tests.support.services import CORRAL, Corral, corral_up

pytestmark = pytest.mark.e2e
NAME = "hf.co/owner/models"
DIGEST = hashlib.sha256(BUNDLED_PATH.read_bytes()).hexdigest()
SIZE = BUNDLED_PATH.stat().st_size


FILES = {
    "demo-Q8_0.gguf": BUNDLED_PATH.read_bytes(),
    "audited-F16.gguf": BUNDLED_PATH.read_bytes(),
    "junk-Q2_K.gguf": b"GGUF junk",
}


@pytest.fixture(scope="module")
def shared_hub() -> Iterator[ModelHub]:
    """A Hub with the bundled model under two names, and a file that is none."""
    with run_model_hub({}) as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in hub.variables.items():
            patch.setenv(name, value)
        yield hub


@pytest.fixture(scope="module")
def corral(shared_hub: ModelHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    settings = {"model_hosts": [shared_hub.host], "usage_interval_s": 0.1}
    with corral_up(tmp_path_factory.mktemp("ollama"), inference=settings) as corral:
        yield corral


@pytest.fixture
def hub(shared_hub: ModelHub) -> ModelHub:
    """The Hub as it was, with all files."""
    shared_hub.files.update(FILES)
    shared_hub.requests.clear()
    shared_hub.gate = None
    return shared_hub


@pytest.fixture
def ollama(corral: Corral) -> Iterator[httpx.Client]:
    """A client of a server whose models are deleted afterwards."""
    with httpx.Client(base_url=f"{corral.url}/api", trust_env=False, timeout=60) as client:
        yield client
        for name in {*listed(client), "junk-Q2_K"} - {"demo-chat:latest"}:
            client.request("DELETE", "delete", json={"model": name})
        assert listed(client) == ["demo-chat:latest"]


def pull(client: httpx.Client, model: str, gate: threading.Event | None = None) -> list[Any]:
    """The lines of a pull. `gate` is opened when some of the file is here."""
    lines = []
    with client.stream("POST", "pull", json={"model": model}) as answer:
        assert answer.status_code == 200, answer.read()
        for text in answer.iter_lines():
            lines.append(json.loads(text))
            if gate is not None and lines[-1].get("completed"):
                gate.set()
    return lines


def listed(client: httpx.Client) -> list[str]:
    return sorted(model["name"] for model in client.get("tags").json()["models"])


def test_a_pull_shows_its_progress_and_gives_the_model_its_name(
    hub: ModelHub, ollama: httpx.Client
) -> None:
    """A client that leaves does not end it, and one that pulls again follows it to its end."""
    hub.gate = threading.Event()
    with ollama.stream("POST", "pull", json={"model": f"{NAME}:Q8_0"}) as left:
        next(left.iter_lines())
    lines = pull(ollama, f"{NAME}:Q8_0", hub.gate)
    again = ollama.post("pull", json={"model": f"{NAME}:Q8_0", "stream": False})
    copied = ollama.post("copy", json={"source": f"{NAME}:Q8_0", "destination": "mine"})
    names = listed(ollama)
    answer = ollama.post("generate", json={"model": "mine", "prompt": "Hi", "stream": False})
    ollama.request("DELETE", "delete", json={"model": "mine"})
    kept = listed(ollama)
    deleted = ollama.request("DELETE", "delete", json={"model": f"{NAME}:Q8_0"})

    assert lines[0] == {"status": "pulling manifest"}
    progress = [line for line in lines if "digest" in line]
    for line in progress:
        assert (line["status"], line["digest"]) == (f"pulling {DIGEST[:12]}", f"sha256:{DIGEST}")
        assert 0 < line["completed"] <= line["total"] == SIZE
    others = [line["status"] for line in lines[1:] if line not in progress]
    assert others in (["verifying sha256 digest", "success"], ["success"])
    assert len(hub.ranges("demo-Q8_0.gguf")) == 1
    assert again.json() == {"status": "success"}
    assert copied.status_code == deleted.status_code == 200
    assert names == ["demo-chat:latest", f"{NAME}:Q8_0", "mine:latest"]
    assert answer.json()["response"]
    assert kept == ["demo-chat:latest", f"{NAME}:Q8_0"]
    assert listed(ollama) == ["demo-chat:latest"]


def test_a_pull_that_fails_says_why(hub: ModelHub, ollama: httpx.Client) -> None:
    """With a status before the download begins, then as the last line; the same pull tries again.
    The tag is optional, and URLs of allowed hosts work too."""
    refused = ollama.post("pull", json={"model": f"{NAME}:IQ1_S"})
    other = ollama.post("pull", json={"model": "https://10.0.0.1/model.gguf"})
    line = pull(ollama, f"{NAME}:Q2_K")[-1]
    whole = ollama.post("pull", json={"model": f"{NAME}:Q2_K", "stream": False})
    del hub.files["junk-Q2_K.gguf"]
    untagged = pull(ollama, f"{NAME}:latest")[-1]
    hub.gate = threading.Event()  # else it may have come before its first state is sent
    by_url = pull(ollama, hub.url("demo-Q8_0.gguf"), hub.gate)

    assert refused.status_code == other.status_code == 400
    assert "Invalid 'model'" in refused.json()["error"]
    assert "demo-Q8_0.gguf" in refused.json()["error"]
    assert "inference.model_hosts" in other.json()["error"]
    assert line.keys() == {"error"}
    assert "junk-Q2_K.gguf" in line["error"]
    assert (whole.status_code, whole.json()) == (400, line)
    (digest,) = {line["digest"] for line in by_url if "digest" in line}
    assert re.fullmatch("sha256:[0-9a-f]{64}", digest)
    assert untagged == by_url[-1] == {"status": "success"}
    assert f"{NAME}:latest" in listed(ollama)
    assert hub.url("demo-Q8_0.gguf") in listed(ollama)


def test_changes_of_models_are_in_the_audit_log(
    hub: ModelHub, ollama: httpx.Client, corral: Corral
) -> None:
    """What was refused is not. The query of a URL, which may be a secret, is nowhere to be seen."""
    url = hub.url("audited-F16.gguf")
    pull(ollama, f"{url}?token=a hidden")
    ollama.post("pull", json={"model": f"{NAME}:IQ1_S"})
    command = [str(CORRAL), "models", "pin", "audited-F16", "--target", corral.target]
    subprocess.run(command, env=clean_environment(), check=True, capture_output=True)
    ollama.post("copy", json={"source": url, "destination": "mine"})
    shown = ollama.get(f"{corral.url}/admin/models").text
    ollama.request("DELETE", "delete", json={"model": "audited-F16"})
    events: list[Any] = []
    while len(events) < 4:
        every = ollama.get(f"{corral.url}/admin/audit").json()["events"]
        events = [event for event in every if "audited" in event["target"]]

    acts = [(event["method"].partition("/")[2], event["target"]) for event in events[::-1]]
    assert acts == [
        ("AddModel", url),
        ("UpdateModel", "audited-F16"),
        ("AddModelAlias", url),
        ("RemoveModel", "audited-F16"),
    ]
    assert json.loads(events[-1]["request"]) == {"source": url, "aliases": [url]}
    assert url in shown
    log = "\n".join(line.text for line in corral.program.stderr)
    assert f"is added from {url}" in log
    assert "hidden" not in shown + json.dumps(events) + log
