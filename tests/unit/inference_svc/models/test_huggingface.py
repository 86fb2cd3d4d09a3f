"""Downloads from Hugging Face, and the messages of failed ones."""

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


class FakeHub:
    """A fake of `hf_hub_download` that returns a path or raises an error."""

    def __init__(self, result: Exception | str) -> None:
        self.result = result
        self.call: tuple[object, ...] = ()

    def __call__(self, repo_id: str, filename: str, **options: object) -> str:
        self.call = (repo_id, filename, options)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def response(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://hub.test/x"))


def test_a_file_is_downloaded_with_folder_and_token(tmp_path: Path) -> None:
    """To a cache in the data folder, with the token of the settings."""
    hub = FakeHub(str(tmp_path / "downloaded.gguf"))

    path = HuggingFaceDownloads(tmp_path, "secret", hub)(RemoteFile("o/r", "f.gguf", "v1"))

    assert path == tmp_path / "downloaded.gguf"
    options = {"revision": "v1", "cache_dir": tmp_path, "token": "secret"}
    assert hub.call == ("o/r", "f.gguf", options)


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
    """With the model reference and what to do."""
    download = HuggingFaceDownloads(tmp_path, None, FakeHub(error))
    with pytest.raises(StartupError) as raised:
        download(RemoteFile("owner/repo", "model.gguf", None))

    assert expected in str(raised.value)
    assert str(raised.value).startswith("model hf:owner/repo/model.gguf: ")
