"""The file of the models that operators add while the service runs, and of their aliases."""

import json
import logging
import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from inference_svc.models.sources import ENGINE, DownloadFile
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import atomic_file, open_regular, own_files
from svc_kit.logs import hide_queries

log = logging.getLogger(__name__)
_VERSION: Final = 1
_FILE_LIST: Final = "files.json"
_FOLDER: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedUpstream:
    """The engine of others that serves an added model; an empty `kind` or `task` is asked of it."""

    urls: tuple[str, ...]
    kind: str = ""
    model: str = ""
    concurrency: int | None = None
    context_tokens: int | None = None
    task: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedModel:
    """A model that an operator added. `files` are to be downloaded: those of the model, then its
    projector, draft model and adapter; without any, `source` is a path. An empty `projector` is the
    file beside it, an empty `draft_model` none. Of a model that an `upstream` serves they are the
    tokenizer; `source` is "engine" if the engine reports it, and empty in text mode."""

    name: str
    source: str
    sha256: str = ""
    projector: str = ""
    draft_model: str = ""
    files: tuple[DownloadFile, ...] = ()
    pinned: bool = False
    idle_ttl_s: float | None = None
    upstream: AddedUpstream | None = None

    def has_fields_of(self, wanted: "AddedModel") -> bool:
        """Whether it has the source and upstream of another, and each other field that is set
        there."""
        is_same = self.source == wanted.source and self.upstream == wanted.upstream
        return is_same and all(
            getattr(wanted, name) in ("", "auto", False, None, getattr(self, name))
            for name in ("sha256", "projector", "draft_model", "pinned", "idle_ttl_s")
        )

    @property
    def has_no_file(self) -> bool:
        """Whether nothing of it is here until its engine is connected."""
        return self.upstream is not None and self.source in ("", ENGINE)

    @property
    def shown_source(self) -> str:
        """Its source for clients and logs."""
        return hide_queries(self.source)

    @property
    def folder(self) -> str:
        """The name of the folder of its downloads, the same for the same files and digests."""
        sources = [f"{file.source} {file.sha256}" for file in self.files] or [self.source]
        return sha256("\n".join(sources).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class AddedModels:
    """All added models and aliases, by name."""

    models: dict[str, AddedModel]
    aliases: dict[str, str]


def read_added_models(path: Path) -> AddedModels:
    """Read the file of added models; nothing if there is none.

    Raises:
        StartupError: the file cannot be read, or is of a later release.
    """
    try:
        stored = json.loads(path.read_text())
        if stored["version"] != _VERSION:
            raise ValueError(f"its version is {stored['version']}")
        models = [_read_model(each) for each in stored["models"]]
        return AddedModels({each.name: each for each in models}, dict(stored["aliases"]))
    except (FileNotFoundError, NotADirectoryError):
        return AddedModels({}, {})
    except (OSError, ValueError, TypeError, LookupError) as error:
        remedy = "restore it from a backup, or remove it to start without added models"
        raise StartupError(f"{path} cannot be read ({error}): {remedy}") from error


def _read_model(stored: dict[str, Any]) -> AddedModel:
    files = tuple(DownloadFile(**file) for file in stored["files"])
    upstream = stored.get("upstream")
    if upstream is not None:
        upstream = AddedUpstream(**{**upstream, "urls": tuple(upstream["urls"])})
    return AddedModel(**{**stored, "files": files, "upstream": upstream})


def _stored_model(model: AddedModel) -> dict[str, Any]:
    """A model without an upstream or a draft model as releases before 0.3 read it."""
    stored = asdict(model)
    for name in ("upstream", "draft_model"):
        if not stored[name]:
            del stored[name]
    return stored


def write_added_models(path: Path, added: AddedModels) -> None:
    """Replace the file of added models, durably. Raises `OSError`."""
    models = [_stored_model(each) for each in added.models.values()]
    stored = {"version": _VERSION, "models": models, "aliases": added.aliases}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(json.dumps(stored, indent=1).encode())
        file.flush()
        os.fsync(file.fileno())


def write_file_list(folder: Path, files: Iterable[DownloadFile]) -> None:
    """Write down what is downloaded into a folder next, which is created. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / _FILE_LIST) as list_file:
        list_file.write(json.dumps([file.name for file in files]).encode())


def delete_downloads(folder: Path, names: Iterable[str]) -> None:
    """Delete the files of a download, also unfinished ones, and its folder unless it has other
    files. The list of them is deleted last, so that a deletion that was killed can be completed."""
    if folder.is_symlink():
        return
    files = "|".join(rf"{re.escape(name)}(\.part|\.etag)?" for name in names)
    file_list = rf"{re.escape(_FILE_LIST)}(\.[0-9a-f]{{8}}\.part)?"
    with suppress(OSError):
        for form in (files, file_list):
            for path in own_files(folder, re.compile(form)):
                path.unlink()
        folder.rmdir()


def delete_unused_downloads(downloads: Path, used: Collection[str]) -> None:
    """Delete what a removal that was cut off has left: what the list in its folder names."""
    for folder in downloads.iterdir() if downloads.is_dir() else ():
        if folder.name in used or not _FOLDER.fullmatch(folder.name):
            continue
        names: list[str] = []
        with suppress(OSError, ValueError, TypeError), open_regular(folder / _FILE_LIST) as file:
            names = [str(name) for name in json.loads(file.read(1 << 20))]
        delete_downloads(folder, names)
        if folder.exists():
            log.warning("%s is of no model, and has files of others: it stays", folder)
