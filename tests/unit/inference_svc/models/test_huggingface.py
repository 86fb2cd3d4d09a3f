"""Downloads from Hugging Face, and the messages of failed ones."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import httpx2
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from inference_svc.models.huggingface import HuggingFaceDownloads
from inference_svc.models.sources import RemoteFile, RemoteFileMissing
from svc_kit.lifecycle import StartupError


def response(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://hub.test/x"))


def test_a_file_is_downloaded_to_the_folder(tmp_path: Path) -> None:
    """To a cache in the data folder, in the revision that was asked for."""
    hub = Mock(return_value=str(tmp_path / "downloaded.gguf"))

    path = HuggingFaceDownloads(tmp_path, hub)(RemoteFile("o/r", "f.gguf", "v1"))

    assert path == tmp_path / "downloaded.gguf"
    hub.assert_called_once_with("o/r", "f.gguf", revision="v1", cache_dir=tmp_path)


class GatedHub(BaseHTTPRequestHandler):
    """A hub whose repositories are all gated. It keeps what it is asked for, and the headers."""

    requests: ClassVar[list[str]] = []
    tokens: ClassVar[list[str | None]] = []
    user_agents: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        """Refuse access to a file."""
        self.requests.append(f"{self.command} {self.path}")
        self.tokens.append(self.headers["authorization"])
        self.user_agents.append(self.headers["user-agent"])
        self.send_response(403)
        self.send_header("X-Error-Code", "GatedRepo")
        self.end_headers()

    do_GET = do_HEAD


def ask_hub(folder: Path, code: str) -> str:
    """Run `code` in a process of its own with a new cache, and return its stderr."""
    for kept in (GatedHub.requests, GatedHub.tokens, GatedHub.user_agents):
        kept.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), GatedHub) as hub:
        threading.Thread(target=hub.serve_forever).start()
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        environment = {"HF_TOKEN": "secret", "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1"}
        result = subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            env={**os.environ, "HF_HOME": str(folder / "home"), "AI_AGENT": "x", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        hub.shutdown()
    return result.stderr


DOWNLOAD = (
    "import sys; from pathlib import Path\n"
    "from inference_svc.models.huggingface import HuggingFaceDownloads, RemoteFile\n"
    "HuggingFaceDownloads(Path(sys.argv[1]))(RemoteFile('o/r', 'f.gguf', None))"
)
LIST = (
    "import asyncio\n"
    "from inference_svc.models.huggingface import find_files\n"
    "asyncio.run(find_files('hf:o/r', with_projector=True, with_adapter=True))"
)


@pytest.mark.parametrize(
    ("code", "request_line"),
    [(DOWNLOAD, "HEAD /o/r/resolve/main/f.gguf"), (LIST, "GET /api/models/o/r?blobs=true")],
    ids=["download", "listing"],
)
def test_the_hub_is_asked_for_nothing_else(tmp_path: Path, code: str, request_line: str) -> None:
    """With the token of the environment, and without telemetry: no list of agents, none named."""
    stderr = ask_hub(tmp_path, code)

    assert GatedHub.requests == [request_line]
    assert GatedHub.tokens == ["Bearer secret"]
    assert not any("agent/" in each for each in GatedHub.user_agents)
    assert "the repository is gated: accept its terms there" in stderr


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GatedRepoError("x", response=response(403)), "accept its terms"),
        (RepositoryNotFoundError("x", response=response(404)), "check the name, set HF_TOKEN"),
        (RevisionNotFoundError("x", response=response(404)), "no such revision"),
        (RemoteEntryNotFoundError("x", response=response(404)), "no such file"),
        (LocalEntryNotFoundError("x"), "check the network"),
        (HFValidationError("bad name"), "not valid: bad name"),
        (HfHubHTTPError("500 oops", response=response(500)), "the download failed"),
        (OSError(28, "No space left on device"), "No space left"),
    ],
)
def test_a_failed_download_is_a_startup_error(
    tmp_path: Path, error: Exception, expected: str
) -> None:
    download = HuggingFaceDownloads(tmp_path, Mock(side_effect=error))
    with pytest.raises(StartupError) as raised:
        download(RemoteFile("owner/repo", "model.gguf", None))

    assert expected in str(raised.value)
    assert str(raised.value).startswith("model hf:owner/repo/model.gguf: ")


def test_a_file_that_the_repository_does_not_have_is_missing(tmp_path: Path) -> None:
    """Also later, when the repository cannot be reached; other failures are no such answer."""
    remote = RemoteFile("owner/repo", "chat_template.jinja", None)
    gone = RemoteEntryNotFoundError("x", response=response(404))
    offline = HuggingFaceDownloads(tmp_path, Mock(side_effect=LocalEntryNotFoundError("x")))

    with pytest.raises(RemoteFileMissing):
        HuggingFaceDownloads(tmp_path, Mock(side_effect=gone))(remote)
    with pytest.raises(StartupError) as unknown:
        offline(remote)
    cache = tmp_path / "models--owner--repo"
    for path, content in (("refs/main", "c0ffee"), (f".no_exist/c0ffee/{remote.file}", "")):
        (cache / path).parent.mkdir(parents=True)
        (cache / path).write_text(content)
    (cache / "snapshots").mkdir()

    assert not isinstance(unknown.value, RemoteFileMissing)
    with pytest.raises(RemoteFileMissing):
        offline(remote)


FIND = """if True:
    import asyncio, json, os, sys
    from tests.support.model_hub import REPOSITORY, run_model_hub
    with run_model_hub({}) as hub:
        os.environ.update(hub.variables)
        from inference_svc.models.huggingface import find_files
        for source, *sizes in map(str.split, sys.argv[1:]):
            hub.files = {name: bytes(int(size)) for name, size in zip(sizes[::2], sizes[1::2])}
            beside, source = source != "/mmproj.gguf", f"hf:{REPOSITORY}{source}".rstrip("-")
            files = asyncio.run(
                find_files(source, with_projector=beside, with_adapter=beside))
            print(*[file.name for file in files])
"""


def test_the_files_of_a_model_are_found() -> None:
    """The model by its quantization, if possible as a word; an adapter by its name and size. Files
    whose names are all those of adapters are models."""
    cases = {
        "- x-LoRA-Q4_K_M.gguf 90 x-LoRA-Q8_0.gguf 90": "x-LoRA-Q4_K_M.gguf",
        "- x-Q4_K_M.gguf 90 x-lora-Q8_0.gguf 90": "x-Q4_K_M.gguf",
        "- x.gguf 90 lora/a.gguf 30 mmproj.gguf 90": "x.gguf mmproj.gguf a.gguf",
        "- Flora.gguf 90 x-lorablated.gguf 30": "Flora.gguf",
        ":F16 BF16.gguf 90 F16.gguf 90": "F16.gguf",
        ":f16 a_BF16.gguf 90 a_F16.gguf 90": "a_F16.gguf",
        ":Q4_K x-Q4_K_M.gguf 90 x.Q4_K.gguf 90": "x.Q4_K.gguf",
        ":Q4_K x-Q4_K_M.gguf 90 x-Q4_K_S.gguf 90": "x-Q4_K_M.gguf",
        "/mmproj.gguf mmproj.gguf 90 x.gguf 90 x-lora.gguf 30": "mmproj.gguf",
    }
    found = subprocess.check_output([sys.executable, "-c", FIND, *cases], text=True)

    assert found.splitlines() == list(cases.values())
