"""Downloads model files from Hugging Face, with a cache and a progress bar on stderr.

Import this module only to download: the client library takes a second to import.
"""

from collections.abc import Callable
from pathlib import Path

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


class HuggingFaceDownloads:
    """Downloads files into `folder`. `client` is `hf_hub_download` or a test double.

    The client reads HF_TOKEN, for private and gated repositories, and HF_ENDPOINT, for a mirror.
    """

    def __init__(self, folder: Path, client: Callable[..., str] = hf_hub_download) -> None:
        self._folder = folder
        self._client = client

    def __call__(self, remote: RemoteFile) -> Path:
        """Download a file unless it is cached, and return its path. Blocks, possibly for minutes.

        Raises:
            StartupError: the download failed; the message has a remedy.
        """
        try:
            return Path(
                self._client(
                    remote.repository,
                    remote.file,
                    revision=remote.revision,
                    cache_dir=self._folder,
                )
            )
        except (HFValidationError, HfHubHTTPError, EntryNotFoundError, OSError) as error:
            raise StartupError(f"model {remote}: {self._explain(error)}") from error

    def _explain(self, error: Exception) -> str:
        match error:
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
                return f"the name is not valid: {error}"
            case HfHubHTTPError():
                return f"the download failed: {error}"
            case _:
                return f"it cannot be stored in {self._folder}: {error}"
