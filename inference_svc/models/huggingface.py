"""Downloads model files from Hugging Face, with a cache and a progress bar on stderr, and finds the
files of a repository for downloads at run time.

Import this module only to download: the client library takes a second to import.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, get_token, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from inference_svc.models.sources import (
    DownloadFile,
    ModelReference,
    RemoteFile,
    is_adapter,
    is_projector,
    remote_parts,
)
from svc_kit.errors import DownloadFailed
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
            raise StartupError(f"model {remote}: {_explain(error, self._folder)}") from error


def find_files(
    source: str, *, with_projector: bool, with_adapter: bool
) -> tuple[DownloadFile, ...]:
    """Return the files of a model in a repository, at its current commit. Blocks.

    Args:
        source: hf:owner/repository/file.gguf[@revision], or hf:owner/repository[:QUANTIZATION] for
            the first file with the quantization (default: Q4_K_M, else any) in its name, if
            possible as a word of its own.
        with_projector: whether to add the only projector.
        with_adapter: whether to add the only LoRA adapter: a file with the name of one and at most
            a third of the model's size. Merged models have such names too.

    Raises:
        StartupError: the source is invalid, or there is no such repository or file.
        DownloadFailed: the Hub cannot be reached.
    """
    match = _REPOSITORY.fullmatch(source)
    remote = None if match else ModelReference(None, source).remote
    repository = match["repository"] if match else remote.repository if remote else ""
    listed = _list_repository(repository, remote.revision if remote else None)
    names = sorted(name for name in listed if name.endswith(".gguf"))
    projectors = [name for name in names if is_projector(name)]
    others = [name for name in names if not is_projector(name)]
    if remote is None:
        models = [name for name in others if not is_adapter(name)] or others
        remote = RemoteFile(repository, _choose(models, match and match["quantization"]), None)
    chosen = [part.file for part in remote_parts(remote)]
    if missing := [name for name in chosen if name not in listed]:
        raise StartupError(f"the repository has no file {missing[0]!r}")
    max_bytes = sum(listed[name].size_bytes for name in chosen) / _ADAPTER_SHARE
    adapters = [
        name for name in others if is_adapter(name) and listed[name].size_bytes <= max_bytes
    ]
    for beside in (projectors if with_projector else [], adapters if with_adapter else []):
        if len(beside) == 1 and beside[0] not in chosen:
            chosen += beside
    return tuple(listed[name] for name in chosen)


def file_request(source: str) -> tuple[str, dict[str, str]]:
    """Return the URL of hf:owner/repository/file@commit, and the headers for it. Blocks."""
    remote = ModelReference(None, source).remote
    if remote is None:
        raise StartupError(f"{source!r} is not on Hugging Face")
    url = hf_hub_url(remote.repository, remote.file, revision=remote.revision)
    token = get_token()
    return url, {"authorization": f"Bearer {token}"} if token else {}


_ADAPTER_SHARE = 3
_REPOSITORY = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(:(?P<quantization>[\w.-]+))?")


def _list_repository(repository: str, revision: str | None) -> dict[str, DownloadFile]:
    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=10)
    except (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    ) as error:
        raise StartupError(_explain(error)) from error
    except (HfHubHTTPError, httpx2.TransportError) as error:
        raise DownloadFailed(
            file=repository, problem=f"the Hub does not answer: {error}"
        ) from error
    return {
        each.rfilename: DownloadFile(
            source=f"hf:{repository}/{each.rfilename}@{info.sha}",
            name=Path(each.rfilename).name,
            sha256=each.lfs.sha256 if each.lfs else "",
            size_bytes=each.size or 0,
        )
        for each in info.siblings or ()
    }


def _choose(names: Sequence[str], quantization: str | None) -> str:
    wanted = quantization or "Q4_K_M"
    word = re.compile(rf"(?<![^\W_]){re.escape(wanted)}(?!\w)", re.IGNORECASE | re.ASCII)
    matching = [name for name in names if word.search(name)] or [
        name for name in names if wanted.lower() in name.lower()
    ]
    if not quantization:
        matching = matching or list(names)
    if not matching:
        there = ", ".join(names) or "none"
        raise StartupError(f"no model has {wanted!r} in its name; there are: {there}")
    return matching[0]


def _explain(error: Exception, folder: Path | None = None) -> str:
    """Say why a request to the Hub failed, and what to do. `folder` is that of downloads."""
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
            return f"it cannot be stored in {folder}: {error}"
