"""Model sources: a file, a folder, Hugging Face, or the bundled model.

[NAME=]path/to/model.gguf     a file, or the first file of a split model
path/to/folder                every model in it
hf:owner/repo[/FILE.gguf]     downloaded from Hugging Face
bundled                       the demo model of this package

The projector of a model is a file of its own, found beside the model or named by a setting, and so
is its draft model, which is always named.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inference_svc.models.hf_folder import OPTIONAL_FILES, REQUIRED_FILES, HfFolder
from inference_svc.models.metadata import (
    FileRole,
    ModelClass,
    ModelFile,
    default_name,
    describe_model,
    file_role,
    fileless_model,
    split_paths,
    unusable_model,
)
from inference_svc.models.projector_file import ProjectorFile, describe_projector
from model_files.gguf import ModelFileInvalid
from svc_kit.lifecycle import StartupError

BUNDLED = "bundled"
BUNDLED_NAME = "demo-chat"
ENGINE = "engine"
"""The source of a tokenizer that an engine of others reports."""
BUNDLED_FOLDER = Path(__file__).with_name("bundled")
BUNDLED_PATH = BUNDLED_FOLDER / "demo-chat-q8_0.gguf"
BUNDLED_DRAFT_PATH = BUNDLED_FOLDER / "demo-draft-q8_0.gguf"
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._:-]{0,127})=(?P<source>.+)", re.DOTALL)
_HUGGING_FACE = re.compile(
    r"hf:(?P<repository>[\w.-]+/[\w.-]+)/(?P<file>[^@]+\.gguf)(?:@(?P<revision>[\w./-]+))?"
)
_HF_FOLDER = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_LORA = re.compile(r"(?<![a-z])lora(?![a-z])", re.IGNORECASE)
"""Not as a part of a word, such as the names of lorablated models."""
_MAX_UNUSED_TOKENS = 1024
"""By how many tokens at its end a vocabulary may be longer than that of a draft model: models of a
family are padded to different sizes."""
_FORMS = "a path, a folder, hf:owner/repository/file.gguf, or bundled"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a Hugging Face repository. `revision` None is the main branch."""

    repository: str
    file: str
    revision: str | None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repository}/{self.file}{revision}"


class RemoteFileMissing(StartupError):
    """A repository does not have a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadFile:
    """A file to download. `source` is a URL or hf:owner/repository/file@commit; an empty `sha256`
    is not checked, a size of 0 is not known."""

    source: str
    name: str
    sha256: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelReference:
    """One value of `--model`. `name` None is the default name of the file."""

    name: str | None
    source: str

    @property
    def remote(self) -> RemoteFile | None:
        """The file on Hugging Face; None for other sources.

        Raises:
            StartupError: the source begins with "hf:" but does not name a GGUF file.
        """
        if not self.source.startswith("hf:"):
            return None
        parts = _HUGGING_FACE.fullmatch(self.source)
        if parts is None or ".." in self.source:
            raise StartupError(
                f"model {self.source!r}: write hf:owner/repository/file.gguf "
                "(a folder inside the repository may come before the file)"
            )
        return RemoteFile(parts["repository"], parts["file"], parts["revision"])


Download = Callable[[RemoteFile], Path]


def parse_reference(text: str) -> ModelReference:
    """Parse a model reference. Raises `StartupError` if it is empty."""
    if not text.strip():
        raise StartupError(f"a model reference is empty: give {_FORMS}")
    match = _NAMED.fullmatch(text)
    if match is None or Path(text).exists():  # a path may contain "="
        return ModelReference(None, text)
    return ModelReference(match["name"], match["source"])


def resolve_models(texts: Sequence[str], download: Download) -> list[ModelFile]:
    """Find and describe the referenced models, in order; one whose file is missing or invalid has a
    problem. Blocks.

    Args:
        texts: model references.
        download: downloads a file from Hugging Face; see `inference_svc.models.huggingface`.

    Raises:
        StartupError: a reference is malformed, a folder has no model, or two models share a name.
    """
    if not texts:
        raise StartupError(f"no model is given: name {_FORMS}")
    models = [model for text in texts for model in _resolve(parse_reference(text), download)]
    by_name: dict[str, ModelFile] = {}
    for model in models:
        other = by_name.setdefault(model.name, model)
        if other is not model:
            raise StartupError(
                f"two models are called {model.name!r} ({other.path} and {model.path}): "
                "give one another name with NAME=SOURCE"
            )
    return models


def _resolve(reference: ModelReference, download: Download) -> list[ModelFile]:
    remote = reference.remote
    # Absolute, because processes with other working directories read it too.
    path = Path(reference.source).expanduser().absolute()
    if reference.source == BUNDLED:
        return [describe_file(BUNDLED_PATH, reference.name or BUNDLED_NAME)]
    if remote is None and path.is_dir():
        return _resolve_folder(path, reference.name)
    name = reference.name or default_name(path if remote is None else Path(remote.file))
    if remote is not None:
        parts = remote_parts(remote)
        try:
            paths = [download(part) for part in parts]
        except StartupError as error:
            return [unusable_model(path, name, str(error))]
        return [describe_file(paths[0], name)]
    if not path.exists():
        problem = f"model {reference.source!r}: there is no such file; give {_FORMS}"
        return [unusable_model(path, name, problem)]
    return [describe_file(path, name)]


def remote_parts(remote: RemoteFile) -> list[RemoteFile]:
    """Return all files of a split model, else the file alone. Raises `StartupError`."""
    try:
        parts = split_paths(Path(remote.file))
    except ModelFileInvalid as error:
        raise StartupError(f"model {remote}: {error.problem}") from None
    return [RemoteFile(remote.repository, str(part), remote.revision) for part in parts]


def _resolve_folder(folder: Path, name: str | None) -> list[ModelFile]:
    paths = [path for path in sorted(folder.glob("*.gguf")) if _is_model(path)]
    if not paths:
        raise StartupError(f"model folder {folder}: there is no model (*.gguf) in it")
    if name is not None and len(paths) > 1:
        raise StartupError(
            f"model folder {folder}: it has {len(paths)} models, so it cannot be called {name!r}; "
            "name the files one by one"
        )
    return [describe_file(path, name or default_name(path)) for path in paths]


def resolve_tokenizer(source: str, name: str, download: Download) -> ModelFile:
    """Find and describe the files with the vocabulary and the chat template of a model that another
    engine runs; with a problem if they are missing or invalid. Blocks.

    Args:
        source: a GGUF file, a folder in Hugging Face's format, hf:owner/repository[@revision] for
            such a folder without weights, hf:owner/repository/file.gguf, or bundled. Empty, or
            "engine": nothing is known of it yet.
        name: that of the model.
        download: as in `resolve_models`.

    Raises:
        StartupError: the source is malformed.
    """
    if source.strip() in ("", ENGINE):
        return fileless_model(name)
    path = Path(source).expanduser().absolute()
    remote = _HF_FOLDER.fullmatch(source)
    if remote is not None and ".." not in source:
        try:
            path = _download_folder(remote["repository"], remote["revision"], download)
        except StartupError as error:
            return unusable_model(path, name, str(error))
    elif source == BUNDLED or not path.is_dir():
        return _resolve(ModelReference(name, source), download)[0]
    try:
        return HfFolder.read(path).describe(name)
    except ModelFileInvalid as error:
        return unusable_model(path, name, f"tokenizer {error.path}: {error.problem}")


def reported_source(reported: str) -> str:
    """The source of the tokenizer that an engine reports as a path, which must be on this machine,
    or as owner/repository[@revision]. Raises `StartupError`."""
    path, remote = Path(reported), f"hf:{reported}"
    with suppress(OSError):  # of names that are too long
        if path.is_absolute() and (path.is_file() or path.is_dir()):
            return reported
    is_relative = reported.startswith(".") or ".." in reported or reported.endswith(".gguf")
    if _HF_FOLDER.fullmatch(remote) and not is_relative:
        return remote
    raise StartupError(
        "that is neither a file or folder here nor a repository; set tokenizer to a GGUF file, a "
        "folder of Hugging Face files, or hf:owner/repository"
    )


def resolve_hf_folder(source: str, download: Download) -> Path:
    """Find a folder in Hugging Face's format. Blocks. Arguments are as in `resolve_tokenizer`.

    Raises:
        StartupError: the source is malformed, is no such folder, or a file is missing or invalid.
    """
    file = resolve_tokenizer(source, source, download)
    if file.problem:
        raise StartupError(file.problem)
    if not (file.paths and file.path.is_dir()):
        raise StartupError(f"{source!r} is no folder; name one of Hugging Face files")
    return file.path


def _download_folder(repository: str, revision: str | None, download: Download) -> Path:
    paths = [download(RemoteFile(repository, name, revision)) for name in REQUIRED_FILES]
    for name in OPTIONAL_FILES:
        try:
            paths.append(download(RemoteFile(repository, name, revision)))
        except RemoteFileMissing:
            continue
    if len({path.parent for path in paths}) > 1:
        raise StartupError(f"hf:{repository} was changed during the download: start again")
    return paths[0].parent


def find_projector(model: ModelFile, source: str, download: Download) -> ProjectorFile | None:
    """Find and describe the projector of a model. Blocks.

    Args:
        model: the model.
        source: a path, hf:owner/repository/file.gguf, "none", or "auto" for the file beside the
            model whose name contains "mmproj", if there is exactly one.
        download: as in `resolve_models`.

    Raises:
        StartupError: the projector is missing, invalid, or named for a model that cannot use one.
    """
    if source == "none" or (source == "auto" and model.model_class is not ModelClass.DECODER):
        return None
    if source == "auto":
        paths = [path for path in model.path.parent.glob("*.gguf") if is_projector(path.name)]
        return _describe_projector(model, paths[0]) if len(paths) == 1 else None
    if model.model_class is not ModelClass.DECODER:
        kind = model.model_class.value
        raise StartupError(f"model {model.name}: a model of the class {kind} uses no projector")
    if remote := ModelReference(None, source).remote:
        return _describe_projector(model, download(remote))
    path = Path(source).expanduser().absolute()
    if not path.exists():
        raise StartupError(f"model {model.name}: there is no projector {source!r}")
    return _describe_projector(model, path)


def _describe_projector(model: ModelFile, path: Path) -> ProjectorFile:
    try:
        return describe_projector(path)
    except ModelFileInvalid as error:
        remedy = f'Name another, or set per_model.{model.name}.projector to "none"'
        raise StartupError(f"projector {path}: {error.problem}. {remedy}") from None


def find_draft_model(model: ModelFile, source: str | None, download: Download) -> ModelFile | None:
    """Find and describe the draft model of a model; None without a source. Blocks.

    Args:
        model: the model.
        source: a path, hf:owner/repository/file.gguf, or bundled, the draft model of the bundled
            model.
        download: as in `resolve_models`.

    Raises:
        StartupError: the draft model is missing or invalid, or cannot draft for this model.
    """
    if source is None:
        return None
    setting = f"per_model.{model.name}.draft_model"
    if model.model_class is not ModelClass.DECODER:
        kind = model.model_class.value
        raise StartupError(f"{setting}: a model of the class {kind} uses no draft model")
    if source == BUNDLED:
        source = str(BUNDLED_DRAFT_PATH)
    draft, *others = _resolve(ModelReference(None, source), download)
    if others:
        raise StartupError(f"{setting}: {source!r} has several models; name one")
    if draft.problem:
        raise StartupError(f"{setting}: {draft.problem}")
    if draft.model_class is not ModelClass.DECODER:
        kind = draft.model_class.value
        raise StartupError(f"{setting}: {draft.name} is of the class {kind}, which cannot draft")
    if abs(draft.vocabulary_size - model.vocabulary_size) > _MAX_UNUSED_TOKENS:
        raise StartupError(
            f"{setting}: the vocabulary of {draft.name} is another one: it has "
            f"{draft.vocabulary_size} tokens instead of {model.vocabulary_size}"
        )
    return draft


def is_projector(name: str) -> bool:
    """Whether a file of this name, beside a model, is its projector."""
    return "mmproj" in name.lower()


def is_adapter(name: str) -> bool:
    """Whether a file of this name, beside a model, is a LoRA adapter."""
    return _LORA.search(name) is not None


def _is_model(path: Path) -> bool:
    if is_projector(path.name):
        return False
    try:
        return file_role(path) is FileRole.MODEL
    except ModelFileInvalid:
        return True  # it is listed with its problem


def describe_file(path: Path, name: str) -> ModelFile:
    """Describe the model whose (first) file is `path`; with the problem if it cannot be used."""
    try:
        return describe_model(path, name)
    except ModelFileInvalid as error:
        remedy = "Download the file again, or name another"
        return unusable_model(path, name, f"model {error.path}: {error.problem}. {remedy}")
