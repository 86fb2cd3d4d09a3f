"""Finds the files that the source of an added model means, before anything is downloaded."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from inference_svc.media.fetcher import MediaFetcher
from inference_svc.model_pool.added_models_file import AddedModel
from inference_svc.models.metadata import default_name, split_paths
from inference_svc.models.sources import DownloadFile
from inference_svc.upstream_settings import UpstreamSettings
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import InvalidField, MissingField
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import AllowedFolders

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_FILE_NAME: Final = re.compile(r"[\w. ()+=@,-]{1,200}\.gguf", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NO_SOURCE: Final = {"projector": ("auto", "none"), "draft_model": ("",)}
"""The values of fields that name no file."""


class AddedModelSources:
    """Files in allowed folders, on allowed hosts and on the Hugging Face Hub; upstreams on the
    `engines`' hosts."""

    def __init__(
        self, fetcher: MediaFetcher, folders: AllowedFolders, engines: MediaFetcher
    ) -> None:
        self._fetcher = fetcher
        self._folders = folders
        self._engines = engines

    async def find_files(self, wanted: AddedModel) -> AddedModel:
        """Fill in the files of a model, its projector and draft model, and its name if it has none.

        Raises:
            InvalidField, MissingField: the source has no such file, or is not allowed.
            DownloadFailed: the Hub cannot be reached.
        """
        if wanted.has_no_file and not wanted.sha256:
            wanted = self._check_upstream(wanted)
            _check_name(wanted.name)
            return wanted
        if not wanted.source:
            raise MissingField(field="source")
        wanted = self._check_upstream(wanted)
        if wanted.sha256 and not _SHA256.fullmatch(wanted.sha256):
            raise InvalidField(field="sha256", problem="a SHA-256 has 64 hexadecimal digits")
        files = await self._remote_files("source", wanted.source, not wanted.projector)
        source = wanted.source
        if not files:
            source = str(self._folders.find("source", source))
        elif not source.startswith("hf:"):
            source = files[0].source  # as httpx writes it
        name = wanted.name or default_name(Path(files[0].name if files else source))
        _check_name(name)
        if wanted.sha256:
            files = _with_digest(files, source, wanted.sha256)
        projector, files = await self._find_beside("projector", wanted.projector or "auto", files)
        draft_model, files = await self._find_beside("draft_model", wanted.draft_model, files)
        return replace(
            wanted,
            name=name,
            source=source,
            projector=projector,
            draft_model=draft_model,
            files=files,
        )

    async def _find_beside(
        self, field: str, source: str, files: tuple[DownloadFile, ...]
    ) -> tuple[str, tuple[DownloadFile, ...]]:
        """Return the path or name of the file of a field, and the files of the model with it.
        Raises as `find_files`."""
        if source not in _NO_SOURCE[field]:
            if added := await self._remote_files(field, source, with_projector=False):
                files, source = (*files, *added), added[0].name
            else:
                source = str(self._folders.find(field, source))
        if len({file.name for file in files}) < len(files):
            problem = "its file has the same name as one of the model"
            raise InvalidField(field=field, problem=problem)
        return source, files

    def upstream_settings(self, model: AddedModel) -> UpstreamSettings | None:
        """The settings of the upstream of an added model, if one serves it. Raises `InvalidField`
        if they are invalid or a host is not allowed."""
        if (upstream := model.upstream) is None:
            return None
        try:
            settings = UpstreamSettings(
                **{
                    **asdict(upstream),
                    "kind": upstream.kind or "auto",
                    "task": upstream.task or None,
                    "tokenizer": model.source,
                }
            )
        except ValidationError as error:
            first = error.errors()[0]
            path = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in first["loc"])
            problem = first["msg"].removeprefix("Value error, ")
            raise InvalidField(field=f"upstream{path}", problem=problem) from None
        for index, url in enumerate(settings.urls):
            self._engines.check(f"upstream.urls[{index}]", url)
        return settings

    def _check_upstream(self, wanted: AddedModel) -> AddedModel:
        """Return a model of an upstream without a projector, and another as it is. Raises
        `MissingField` or `InvalidField` for what a model of an upstream cannot have."""
        if wanted.upstream is None:
            return wanted
        for field, is_set in (("name", wanted.name), ("upstream.urls", wanted.upstream.urls)):
            if not is_set:
                raise MissingField(field=field)
        unused = ("projector", "draft_model", "pinned", "idle_ttl_s")
        for field in (each for each in unused if getattr(wanted, each) not in ("", False, None)):
            problem = "it is not allowed with 'upstream'"
            raise InvalidField(field=field.removesuffix("_s"), problem=problem)
        if wanted.has_no_file and wanted.sha256:
            raise InvalidField(field="sha256", problem="it is not allowed with the source 'engine'")
        self.upstream_settings(wanted)
        return replace(wanted, projector="none")

    async def _remote_files(
        self, field: str, source: str, with_projector: bool
    ) -> tuple[DownloadFile, ...]:
        """The files of a source that are downloaded; none if it is a path."""
        if source.startswith("hf:"):
            # Imported here because huggingface_hub is slow to import and seldom needed.
            from inference_svc.models.huggingface import find_files

            try:
                return await find_files(
                    source, with_projector=with_projector, with_adapter=field == "source"
                )
            except StartupError as error:
                raise InvalidField(field=field, problem=str(error)) from error
        if "://" not in source:
            return ()
        url, _ = self._fetcher.check(field, source)
        folder, _, name = url.path.rpartition("/")
        if not _FILE_NAME.fullmatch(name):
            problem = "the URL must end with the name of a file, *.gguf"
            raise InvalidField(field=field, problem=problem)
        return tuple(
            DownloadFile(source=str(url.copy_with(path=f"{folder}/{each}")), name=each)
            for each in _part_names(field, name)
        )


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        problem = f"{name!r} is not 1 to 128 of A-Z, a-z, 0-9 and '._:/-'"
        raise InvalidField(field="name", problem=problem)


def _part_names(field: str, first: str) -> list[str]:
    """The names of all parts of a split model, else of the file. Raises `InvalidField`."""
    try:
        return [part.name for part in split_paths(Path(first))]
    except ModelFileInvalid as error:
        raise InvalidField(field=field, problem=error.problem) from None


def _with_digest(
    files: tuple[DownloadFile, ...], source: str, digest: str
) -> tuple[DownloadFile, ...]:
    """Set the digest of the only file of a model."""
    if len(_part_names("source", files[0].name if files else source)) > 1:
        raise InvalidField(field="sha256", problem="the model is split into several files")
    if not files:
        return files
    if files[0].sha256 not in ("", digest):
        problem = f"the Hub names another, {files[0].sha256}"
        raise InvalidField(field="sha256", problem=problem)
    return (replace(files[0], sha256=digest), *files[1:])
