"""Downloads model files from Hugging Face, with a cache and a progress bar on stderr, and finds the
files of a repository for downloads at run time.

Import this module only to download: the client library takes a second to import.
"""

import asyncio
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx2
from huggingface_hub import (
    _CACHED_NO_EXIST,
    constants,
    get_token,
    hf_hub_download,
    hf_hub_url,
    set_client_factory,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported, but not in __all__
    build_hf_headers,
    hf_raise_for_status,
    validate_repo_id,
)
from pydantic import BaseModel, Field, ValidationError

from inference_svc.models.sources import (
    DownloadFile,
    ModelReference,
    RemoteFile,
    RemoteFileMissing,
    is_adapter,
    is_projector,
    remote_parts,
)
from svc_kit import http_client
from svc_kit.errors import DownloadFailed
from svc_kit.lifecycle import StartupError


@functools.cache
def _limit_client() -> None:
    """Limit what the client library does, before its first use of the network.

    Bodies are limited once: setting a client again closes the one in use. Without telemetry it does
    not ask the Hub for the names of agents, and does not tell it which one runs it.
    """
    constants.HF_HUB_DISABLE_TELEMETRY = True
    hooks: dict[str, list[Callable[..., Any]]] = {"response": [http_client.limit_download]}
    set_client_factory(
        lambda: httpx2.Client(
            event_hooks=hooks,
            follow_redirects=True,
            max_redirects=http_client.MAX_REDIRECTS,
            timeout=_TIMEOUT_S,
        )
    )


def _download(*args: Any, **kwargs: Any) -> str:
    """`hf_hub_download` with a client that is limited."""
    _limit_client()
    path: str = hf_hub_download(*args, **kwargs)
    return path


def _headers() -> dict[str, str]:
    """The headers of a request, with the token if there is one. Blocks: a token may be renewed."""
    _limit_client()
    return build_hf_headers()


class HuggingFaceDownloads:
    """Downloads files into `folder`. `client` is `hf_hub_download` or a test double.

    The client reads HF_TOKEN, for private and gated repositories, and HF_ENDPOINT, for a mirror.
    """

    def __init__(self, folder: Path, client: Callable[..., str] = _download) -> None:
        self._folder = folder
        self._client = client

    def __call__(self, remote: RemoteFile) -> Path:
        """Download a file unless it is cached, and return its path. Blocks, possibly for minutes.

        Raises:
            RemoteFileMissing: the repository does not have the file, or did not when it was last
                reached.
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
            problem = f"model {remote}: {_explain(error, self._folder)}"
            if self._is_missing(remote, error):
                raise RemoteFileMissing(problem) from error
            raise StartupError(problem) from error

    def _is_missing(self, remote: RemoteFile, error: Exception) -> bool:
        if not isinstance(error, LocalEntryNotFoundError):
            return isinstance(error, EntryNotFoundError)
        cached = try_to_load_from_cache(
            remote.repository, remote.file, cache_dir=self._folder, revision=remote.revision
        )
        return cached is _CACHED_NO_EXIST


async def find_files(
    source: str, *, with_projector: bool, with_adapter: bool
) -> tuple[DownloadFile, ...]:
    """Return the files of a model in a repository, at its current commit.

    Args:
        source: hf:owner/repository/file.gguf[@revision], or hf:owner/repository[:QUANTIZATION] for
            the first file with the quantization (default: Q4_K_M, else any) in its name, if
            possible as a word of its own.
        with_projector: whether to add the only projector.
        with_adapter: whether to add the only LoRA adapter: a file with the name of one and at most
            a third of the model's size. Merged models have such names too.

    Raises:
        StartupError: the source is invalid, or there is no such repository or file.
        DownloadFailed: the Hub cannot be reached, or its answer is not one.
    """
    match = _REPOSITORY.fullmatch(source)
    remote = None if match else ModelReference(None, source).remote
    repository = match["repository"] if match else remote.repository if remote else ""
    listed = await _list_repository(repository, remote.revision if remote else None)
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
    _limit_client()
    token = get_token()
    return url, {"authorization": f"Bearer {token}"} if token else {}


_ADAPTER_SHARE = 3
_TIMEOUT_S: Final = 10.0
_LISTING_BYTES: Final = 8 << 20
_NAME_BYTES: Final = 200
_PROBLEM_CHARACTERS: Final = 300
_REPOSITORY = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(:(?P<quantization>[\w.-]+))?")


class _Lfs(BaseModel):
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Sibling(BaseModel):
    rfilename: str
    size: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    lfs: _Lfs | None = None

    @property
    def is_usable(self) -> bool:
        """Whether its name can be that of a file here, and be printed."""
        return self.rfilename.isprintable() and len(self.rfilename.encode()) <= _NAME_BYTES


class _Repository(BaseModel):
    """What is read of the Hub's answer about a repository."""

    sha: Annotated[str, Field(pattern="^[0-9a-f]{40,64}$")]
    siblings: list[_Sibling] = Field(default_factory=list)


async def _list_repository(repository: str, revision: str | None) -> dict[str, DownloadFile]:
    """The files of a repository by name. Raises `StartupError` and `DownloadFailed`."""
    path = f"{repository}/revision/{quote(revision, safe='')}" if revision else repository
    try:
        validate_repo_id(repository)
        response = await http_client.get(
            f"{constants.ENDPOINT}/api/models/{path}",
            max_bytes=_LISTING_BYTES,
            timeout_s=_TIMEOUT_S,
            headers=await asyncio.to_thread(_headers),
            params={"blobs": "true"},
            follow_redirects=True,
        )
        hf_raise_for_status(response)
        info = await asyncio.to_thread(_Repository.model_validate_json, response.content)
    except (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    ) as error:
        raise StartupError(_explain(error)) from error
    except TimeoutError as error:
        problem = f"the Hub did not answer within {_TIMEOUT_S:g} seconds"
        raise DownloadFailed(file=repository, problem=problem) from error
    except ValidationError as error:
        problem = "the answer of the Hub does not describe a repository"
        raise DownloadFailed(file=repository, problem=problem) from error
    except (HfHubHTTPError, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        problem = f"the Hub does not answer: {str(error)[:_PROBLEM_CHARACTERS]}"
        raise DownloadFailed(file=repository, problem=problem) from error
    return {
        each.rfilename: DownloadFile(
            source=f"hf:{repository}/{each.rfilename}@{info.sha}",
            name=Path(each.rfilename).name,
            sha256=each.lfs.sha256 if each.lfs else "",
            size_bytes=each.size or 0,
        )
        for each in info.siblings
        if each.is_usable
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
