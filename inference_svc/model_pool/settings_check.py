"""Checks of the settings of models, before the service starts. Nothing is downloaded.

The headers of local models are read. Memory is planned, which imports llama.cpp, only where it
could be too little.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from inference_svc.config import AdapterSettings, EngineSettings, InferenceSettings
from inference_svc.machine import available_memory_bytes
from inference_svc.model_pool.added_models_file import read_added_models
from inference_svc.model_settings import ModelSettings
from inference_svc.models.metadata import ModelFile
from inference_svc.models.placement import LoadPolicy
from inference_svc.models.sources import (
    RemoteFile,
    parse_reference,
    resolve_hf_folder,
    resolve_models,
    resolve_tokenizer,
)
from model_files.adapter_file import AdapterMismatch, describe_adapter
from model_files.gguf import ModelFileInvalid
from svc_kit.adapter_rules import check_adapter_name
from svc_kit.errors import InvalidField, ModelTooLarge
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import AllowedFolders
from svc_kit.settings.checks import Problem

MEMORY_REMEDY: Final = "Ask for fewer slots or a shorter context, or let models load on demand"


class CheckedModels(NamedTuple):
    """The models of the settings, and what is wrong with them."""

    files: Sequence[ModelFile]
    remote: frozenset[str]
    """Names of those that are downloaded at the start. Their files have a problem here."""
    problems: Sequence[Problem]
    tokenizers: Sequence[ModelFile] = ()
    """The tokenizers of upstreams, by the names of these."""

    @property
    def unusable(self) -> Sequence[ModelFile]:
        """The models that will not be served."""
        every = [*self.tokenizers, *self.files]
        return [file for file in every if file.problem and file.name not in self.remote]


def check_models(settings: InferenceSettings, *, is_running: bool = False) -> CheckedModels:
    """Check the models of the settings. `is_running`: this installation is in memory already, so
    that the models must fit into all memory instead of what is free. Blocks.
    """
    try:
        files = resolve_models(settings.models, _refuse_download) if settings.models else []
        references = [text for text in settings.models if parse_reference(text).remote]
        downloads = [resolve_models([text], _refuse_download) for text in references]
    except StartupError as error:
        return CheckedModels([], frozenset(), [settings.problem("models", str(error))])
    upstreams, tokenizers = settings.upstreams.items(), list[ModelFile]()
    for name, each in upstreams:
        try:
            tokenizers.append(resolve_tokenizer(each.tokenizer, name, _refuse_download))
        except StartupError as error:
            problem = settings.problem(f"upstreams.{name}.tokenizer", str(error))
            return CheckedModels(files, frozenset(), [problem])
    remote = {file.name for group in downloads for file in group}
    remote |= {name for name, each in upstreams if each.tokenizer.startswith("hf:")}
    names = [settings.problem(*each) for each in find_name_problems(settings, files)]
    problems = [*names, *_find_adapter_problems(settings, files), *_find_folder_problem(settings)]
    checked = CheckedModels(files, frozenset(remote), problems, tokenizers)
    if len(unusable := checked.unusable) == len(files) + len(tokenizers):
        setting = f"upstreams.{unusable[0].name}.tokenizer" if tokenizers else "models"
        return checked._replace(
            problems=[*problems, settings.problem(setting, unusable[0].problem)]
        )
    if not checked.problems and _may_lack_memory(settings, files):
        return checked._replace(problems=list(_find_memory_problem(settings, files, is_running)))
    return checked


def find_unknown_names(names: Iterable[str], models: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with names of `models`."""
    models = set(models)
    for name in names:
        if name not in models:
            yield f"no model is called {name!r}; there are {', '.join(sorted(models))}"


def find_embedding_problem(
    name: str, settings: InferenceSettings, checked: CheckedModels
) -> str | None:
    """Why a model cannot embed the files of vector stores; None if it can."""
    for file in checked.unusable:
        if file.name == name:
            return file.problem
    added = read_added_models(settings.data_dir / "added_models.json")
    names = {file.name for file in (*checked.files, *checked.tokenizers)}
    names |= added.models.keys() | added.aliases.keys()
    names |= {alias for model in settings.per_model.values() for alias in model.aliases}
    if name in names:
        return None
    return f"the inference service has no model {name!r}; there are {', '.join(sorted(names))}"


def _refuse_download(remote: RemoteFile) -> Path:
    raise StartupError(f"downloaded at the start: {remote}")


def find_name_problems(
    settings: InferenceSettings, files: Sequence[ModelFile]
) -> Iterator[tuple[str, str]]:
    """Yield settings with wrong names of models, and what is wrong. `files` are those of
    `models`."""
    owners = {name: name for name in (*settings.upstreams, *(file.name for file in files))}
    for file in files:
        if file.name in settings.upstreams:
            yield "upstreams", f"a model is called {file.name!r} too: give one another name"
    for setting in ("per_model", "turn_formats"):
        for text in find_unknown_names(getattr(settings, setting), tuple(owners)):
            yield setting, text
    for name, model in settings.per_model.items():
        for alias in model.aliases:
            if (owner := owners.setdefault(alias, name)) != name:
                yield "per_model", f"the name {alias!r} is given to {owner!r} and to {name!r}"
    for text in find_unknown_names(filter(None, [settings.vllm_engine.model]), owners):
        yield "vllm_engine.model", text
    yield from _find_repeated_adapters(settings, {*owners, *settings.adapters})


def _find_repeated_adapters(
    settings: InferenceSettings, taken: set[str]
) -> Iterator[tuple[str, str]]:
    for name, upstream in settings.upstreams.items():
        for adapter in upstream.adapters:
            if adapter in taken:
                yield f"upstreams.{name}.adapters", f"the name {adapter!r} is given twice"
            taken.add(adapter)


def _find_folder_problem(settings: InferenceSettings) -> Iterator[Problem]:
    """Yield what is wrong with the tokenizer for routers, unless it is downloaded at the start."""
    source = settings.vllm_engine.tokenizer
    if not settings.vllm_engine.enabled or not source or source.startswith("hf:"):
        return
    try:
        resolve_hf_folder(source, _refuse_download)
    except StartupError as error:
        yield settings.problem("vllm_engine.tokenizer", str(error))


def _find_adapter_problems(
    settings: InferenceSettings, files: Sequence[ModelFile]
) -> Iterator[Problem]:
    for name, adapter in settings.adapters.items():
        if (problem := _find_adapter_problem(name, adapter, settings, files)) is not None:
            yield settings.problem("adapters", f"{name!r} ({adapter.path}): {problem}")


def _find_adapter_problem(
    name: str, adapter: AdapterSettings, settings: InferenceSettings, files: Sequence[ModelFile]
) -> str | None:
    """Why an adapter of the settings cannot be loaded, None if nothing speaks against it. One of a
    model that is downloaded at the start is not compared with it."""
    models = {file.name: file for file in files}
    if name in models or name in settings.upstreams:
        return "a model has this name"
    if not models:
        return "there is no model for it: upstreams load no GGUF adapters"
    for problem in find_unknown_names([adapter.model or files[0].name], models):
        return problem
    model = models[adapter.model or files[0].name]
    try:
        check_adapter_name(name)
        folders = AllowedFolders(settings.all_adapter_folders)
        path = folders.find_configured("path", adapter.path)
        if not model.problem:
            describe_adapter(path, model.paths)
    except InvalidField as error:
        return str(error.metadata["problem"])
    except ModelFileInvalid as error:
        return error.problem
    except AdapterMismatch as error:
        return str(error)
    return None


def _may_lack_memory(settings: InferenceSettings, files: Sequence[ModelFile]) -> bool:
    """Whether the plan of memory may fail: it was limited, a size was asked for, or files are
    large."""
    sized: list[EngineSettings | ModelSettings] = [settings.engine, *settings.per_model.values()]
    if settings.pool.memory_mib or any(each.slots or each.context_tokens for each in sized):
        return True
    size_bytes = sum(file.size_bytes for file in files if not file.problem)
    return size_bytes > available_memory_bytes() // 2


def _find_memory_problem(
    settings: InferenceSettings, files: Sequence[ModelFile], is_running: bool
) -> Iterator[Problem]:
    # Imported here because it takes a second, and most settings do not need it.
    from inference_svc.llama import library
    from inference_svc.model_pool.catalog import Catalog
    from inference_svc.model_pool.discovery import make_entry
    from inference_svc.model_pool.lifecycle import plan_start
    from inference_svc.model_pool.pool import read_memory
    from inference_svc.models.device_memory import DeviceBytes

    if is_running and library.can_use_gpu():
        return  # its memory is in use, and how much it has is not known
    models = [settings.per_model.get(file.name, ModelSettings()) for file in files]
    entries = [
        make_entry(file, model, settings, _refuse_download)
        for file, model in zip(files, models, strict=True)
    ]
    loaded = [each for each in entries if each.policy is LoadPolicy.START and not each.file.problem]
    memory = asyncio.run(read_memory(settings.pool, Catalog(entries)))
    if is_running:
        all_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        budget = settings.pool.memory_mib
        memory = replace(
            memory,
            budget_bytes=all_bytes if budget is None else budget << 20,
            available=lambda: DeviceBytes(all_bytes),
        )
    try:
        plan_start(loaded, memory)
    except ModelTooLarge as error:
        yield settings.problem(
            _size_setting(settings, error.model), f"{error.message} {MEMORY_REMEDY}"
        )


def _size_setting(settings: InferenceSettings, model: str) -> str:
    """The setting that makes a model too large."""
    own = settings.per_model.get(model, ModelSettings())
    if own.context_tokens or own.slots:
        return "per_model"
    engine = settings.engine
    if engine.context_tokens or engine.slots:
        return "engine.context_tokens" if engine.context_tokens else "engine.slots"
    return "models" if settings.pool.memory_mib is None else "pool.memory_mib"
