"""Downloads model files from Hugging Face, once, with a progress bar on stderr.

Import this module only where a download is asked for: the client library takes a second to load.
"""

from pathlib import Path
from typing import Protocol

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from inference_svc.models.sources import RemoteFile
from svc_kit.lifecycle import StartupError


class HubClient(Protocol):
    """`hf_hub_download`, or a stand-in: returns where the file is now."""

    def __call__(
        self,
        repo_id: str,
        filename: str,
        *,
        revision: str | None,
        cache_dir: Path,
        token: str | None,
    ) -> str:
        """Fetch a file unless it is there already."""


class HuggingFaceDownloads:
    """Fetches files into `folder`. `token` is for repositories that ask for one."""

    def __init__(
        self, folder: Path, token: str | None = None, client: HubClient | None = None
    ) -> None:
        self._folder = folder
        self._token = token
        self._client = client or _download

    def __call__(self, remote: RemoteFile) -> Path:
        """Return the path of a file, downloaded if need be. Blocks, for minutes perhaps.

        Raises:
            StartupError: it cannot be had; the message says what to do.
        """
        try:
            return Path(
                self._client(
                    remote.repository,
                    remote.file,
                    revision=remote.revision,
                    cache_dir=self._folder,
                    token=self._token,
                )
            )
        except (HFValidationError, HfHubHTTPError, EntryNotFoundError, OSError) as problem:
            raise StartupError(f"model {remote}: {self._remedy(problem)}") from problem

    def _remedy(self, problem: Exception) -> str:
        match problem:
            case GatedRepoError():
                return "the repository is gated: accept its terms there, then set HF_TOKEN"
            case RepositoryNotFoundError():
                return "there is no such repository, or it is private: check the name, set HF_TOKEN"
            case RevisionNotFoundError():
                return "the repository has no such revision"
            case LocalEntryNotFoundError():
                return "it cannot be reached, and the file is not here yet: check the network"
            case EntryNotFoundError():
                return "the repository has no such file: look up its exact name"
            case HFValidationError():
                return f"the name is not valid: {problem}"
            case HfHubHTTPError():
                return f"the download failed: {problem}"
            case _:
                return f"it cannot be stored in {self._folder}: {problem}"


def _download(
    repo_id: str,
    filename: str,
    *,
    revision: str | None,
    cache_dir: Path,
    token: str | None,
) -> str:
    path = hf_hub_download(
        repo_id, filename, revision=revision, cache_dir=cache_dir, token=token or False
    )
    return str(path)
