"""What people read when a download fails."""

from pathlib import Path

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
from inference_svc.models.sources import RemoteFile
from svc_kit.lifecycle import StartupError

REMOTE = RemoteFile("owner/repo", "model.gguf", None)


class FakeHub:
    """Answers like `hf_hub_download`."""

    def __init__(self, answer: Exception | str) -> None:
        self.answer = answer
        self.asked: dict[str, object] = {}

    def __call__(
        self,
        repo_id: str,
        filename: str,
        *,
        revision: str | None,
        cache_dir: Path,
        token: str | None,
    ) -> str:
        self.asked = {
            "repo_id": repo_id,
            "filename": filename,
            "revision": revision,
            "cache_dir": cache_dir,
            "token": token,
        }
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def response(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://hub.test/x"))


def test_a_file_is_asked_for_with_folder_and_token(tmp_path: Path) -> None:
    """The cache is in our data folder and the token is the one from the settings."""
    hub = FakeHub(str(tmp_path / "got.gguf"))

    path = HuggingFaceDownloads(tmp_path, "secret", hub)(RemoteFile("o/r", "f.gguf", "v1"))

    assert path == tmp_path / "got.gguf"
    assert hub.asked == {
        "repo_id": "o/r",
        "filename": "f.gguf",
        "revision": "v1",
        "cache_dir": tmp_path,
        "token": "secret",
    }


@pytest.mark.parametrize(
    ("problem", "expected"),
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
def test_every_failure_has_its_remedy(tmp_path: Path, problem: Exception, expected: str) -> None:
    """One line names the reference and what to do."""
    with pytest.raises(StartupError) as raised:
        HuggingFaceDownloads(tmp_path, None, FakeHub(problem))(REMOTE)

    assert expected in str(raised.value)
    assert str(raised.value).startswith("model hf:owner/repo/model.gguf: ")
