"""The configured models of this server, and the resolution of a request's `model` field.

A `ModelEntry` has a file, described at startup; a `ModelProcessor` (vocabulary and chat template),
or in text mode a `TextProcessor`, opened on first use; and an engine, while the model is loaded.
"""

import asyncio
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from inference_svc.chat.parsers.formats import TurnFormat
from inference_svc.chat.reasoning_support import NO_THINKING, ThinkingSupport
from inference_svc.chat.rerank_inputs import PairTokenizer
from inference_svc.chat.templates import ModelTemplate
from inference_svc.chat.tokenization import PromptTokenizer
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.adapter_registry import Adapter, AdapterRegistry, LoadMarker
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.features import Features
from inference_svc.engine_client.messages import LoadProgress, ModelReady
from inference_svc.media.processor import MediaProcessor
from inference_svc.model_pool.downloads import DownloadProgress
from inference_svc.model_pool.eviction import ModelState, Resident
from inference_svc.models.device_memory import DeviceBytes
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import ModelClass, ModelFile
from inference_svc.models.placement import LoadPolicy
from inference_svc.structured_output.compiler import GrammarVocabulary
from inference_svc.upstream.connection import UpstreamConnection
from inference_svc.upstream_settings import UpstreamSettings
from inference_svc.vocabularies import ModelVocabulary
from svc_kit import errors
from svc_kit.lifecycle import StartupError

_DOWNLOAD_RETRY_S = 30.0


@dataclass(slots=True)
class ModelProcessor:
    """Vocabulary, chat template and formats of a model: converts requests to tokens and back."""

    file: ModelFile
    vocabulary: ModelVocabulary
    template: ModelTemplate
    turn_format: TurnFormat
    tokenizer: PromptTokenizer
    default_sampling: Sampling = field(default_factory=Sampling)
    thinking: ThinkingSupport = NO_THINKING

    @property
    def pair_tokenizer(self) -> PairTokenizer:
        """Builds one input from a query and a document, for reranking."""
        vocabulary = self.vocabulary
        return PairTokenizer(
            self.tokenizer,
            self.file.rank_template,
            vocabulary.bos,
            vocabulary.pair_separator,
            vocabulary.control_texts,
        )

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def decoder_start(self) -> int | None:
        """The token with which the decoder of an encoder-decoder model starts, else None."""
        if not self.file.has_source:
            return None
        start = self.file.decoder_start
        return start if start is not None else self.vocabulary.bos or 0

    def grammar_vocabulary(self, features: Features | None = None) -> GrammarVocabulary:
        """The vocabulary data that the grammar compiler needs, for an engine with `features`."""
        vocabulary, control = self.vocabulary, self.vocabulary.control_tokens
        if features is not None and features.brackets_are_control:
            added = vocabulary.added_tokens.items()
            control = dict(control) | {
                text: token for text, token in added if text[0] == "<" and text[-1] == ">"
            }
        return GrammarVocabulary(vocabulary.size, control, tuple(sorted(vocabulary.end_tokens)))

    def close(self) -> None:
        self.vocabulary.close()


@dataclass(frozen=True, slots=True)
class TextProcessor:
    """What is known here of a model whose upstream is used in text mode: `default_sampling` are
    neutral values, but for those of the settings."""

    name: str
    default_sampling: Sampling

    def close(self) -> None:
        """Nothing is open."""


Processor = ModelProcessor | TextProcessor


def with_tokens(processor: Processor) -> ModelProcessor:
    """Raise `FeatureUnsupported` for a model in text mode."""
    if isinstance(processor, TextProcessor):
        model = f"the model {processor.name!r}, whose engine is used in text mode"
        raise errors.FeatureUnsupported(feature=f"what needs token ids with {model}")
    return processor


class LoadedModel(NamedTuple):
    """A model in use by a call. It stays loaded until the call ends; `digest` is empty until it is
    computed. `media` encodes pictures and sounds, None if the model has no projector."""

    opened: Processor
    engine: EngineClient
    digest: str = ""
    media: MediaProcessor | None = None

    @property
    def processor(self) -> ModelProcessor:
        """Vocabulary and template. Raises `FeatureUnsupported` in text mode."""
        return with_tokens(self.opened)

    @property
    def ready(self) -> ModelReady:
        """The load report of the engine. Raises `EngineRestarting` if there is none yet."""
        if self.engine.ready is None:
            raise errors.EngineRestarting()
        return self.engine.ready


@dataclass(slots=True)
class PendingModel:
    """A model that is being downloaded, or whose files cannot be used: then it has a `problem`."""

    name: str
    source: str
    aliases: tuple[str, ...] = ()
    download: DownloadProgress = field(default_factory=DownloadProgress)
    problem: str = ""
    version: int = 0


@dataclass(slots=True)
class ModelEntry:
    """A model whose files are here, or an `upstream` serves it: then `file` is the tokenizer, and
    the model needs no memory. `requested` are the limits of its next load; `version`
    increases with each change that is visible to watchers. `source` is that of a model that was
    added at run time, empty for those of the settings. One that `is_removed` is not found any
    more. `tokenizer` is the source of an upstream's tokenizer, empty until it is known."""

    file: ModelFile
    requested: RequestedLimits
    resident: Resident
    policy: LoadPolicy = LoadPolicy.START
    aliases: tuple[str, ...] = ()
    processor: Processor | None = None
    engine: EngineClient | None = None
    media: MediaProcessor | None = None
    progress: LoadProgress | None = None
    ready_at: datetime | None = None
    digest: str = ""
    digest_computed: asyncio.Event = field(default_factory=asyncio.Event)
    adapters: AdapterRegistry = field(default_factory=AdapterRegistry)
    version: int = 0
    source: str = ""
    is_removed: bool = False
    upstream: UpstreamSettings | None = None
    tokenizer: str = ""
    connection: UpstreamConnection | None = None
    """That to the upstream, while the model is loaded or loads."""

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def tokenizer_from_engine(self) -> bool:
        """Whether the tokenizer is opened when an engine is connected, which reports its source."""
        return self.upstream is not None and self.upstream.tokenizer_from_engine

    @property
    def state(self) -> ModelState:
        """The state shown to clients; LOADING while the engine of a ready model restarts."""
        return ModelState.LOADING if self.is_down else self.resident.state

    @property
    def memory(self) -> DeviceBytes:
        """The measured memory of its processes; nothing while its engine is down."""
        memory = self.engine.memory if self.engine is not None else DeviceBytes()
        if self.media is None or not memory.total:
            return memory
        return memory + DeviceBytes(self.media.encoder.memory_bytes)

    def shown_problem(self, *, to_operator: bool) -> str:
        """Why it could not be loaded. That of an upstream has URLs and texts of engines, which only
        operators (scope `admin_read`) get."""
        problem = self.resident.problem
        if not problem or to_operator or self.upstream is None:
            return problem
        return "its engine cannot be used; operators see why"

    @property
    def is_down(self) -> bool:
        """Whether the model is ready but its engine crashed and is restarting."""
        return self.resident.state is ModelState.READY and self.is_restarting

    @property
    def is_restarting(self) -> bool:
        """Whether the engine crashed and restarts, and will take its memory again. The engine of an
        unloading model restarts too while calls use it."""
        return self.engine is not None and self.engine.state is EngineState.RESTARTING


class ResolvedModel(NamedTuple):
    """The model of a request, and the adapter if the request names one."""

    model: ModelEntry
    adapter: Adapter | None = None

    @property
    def name(self) -> str:
        """The canonical name: the adapter's, else the model's."""
        return self.adapter.name if self.adapter is not None else self.model.name


class Catalog:
    """All models: those of the settings in their order, then those that were added at run time.
    `pending` are added models that cannot be loaded yet.

    Raises:
        StartupError: two models share a name or an alias.
    """

    def __init__(self, models: Iterable[ModelEntry]) -> None:
        self._models: list[ModelEntry] = []
        self._names: dict[str, ModelEntry] = {}
        self._load_marker: LoadMarker | None = None
        self.pending: dict[str, PendingModel] = {}
        self.registered_adapters: Set[str] = frozenset()
        """Names of the adapters that the control service wants loaded, also of those that are not
        loaded yet, or cannot be."""
        for model in models:
            self._models.append(model)
            for name in (model.name, *model.aliases):
                other = self._names.setdefault(name, model)
                if other is not model:
                    raise StartupError(
                        f"the name {name!r} is given to {other.name!r} and to {model.name!r}"
                    )

    def __iter__(self) -> Iterator[ModelEntry]:
        return iter(self._models)

    def has_model(self, name: str) -> bool:
        """Whether a model has this name or alias."""
        return name in self._names

    def check_no_model(self, name: str) -> None:
        """Raise `ModelExists` if a model, also a pending one, has this name or alias."""
        is_unloading = any(name == model.name for model in self)  # and not found any more
        if name in self._names or self.find_pending(name) or is_unloading:
            raise errors.ModelExists(model=name)

    def check_free(self, name: str) -> None:
        """Raise `ModelExists` or `AdapterExists` if a model or an adapter has this name."""
        self.check_no_model(name)
        loaded = (each.name for model in self for each in model.adapters.current())
        if name in self.registered_adapters or name in loaded:
            raise errors.AdapterExists(adapter=name)

    def add(self, model: ModelEntry) -> None:
        """Add a model whose name is free."""
        if self._load_marker is not None:
            model.adapters.load_marker = self._load_marker
        self._models.append(model)
        self._names[model.name] = model

    def add_alias(self, model: ModelEntry | PendingModel, alias: str) -> None:
        """Give a model another name, which is free."""
        model.aliases = (*model.aliases, alias)
        if isinstance(model, ModelEntry):
            self._names[alias] = model

    def remove_alias(self, alias: str) -> ModelEntry | PendingModel | None:
        """Remove an alias, and return its model; None if there is none."""
        model = self._names.pop(alias, None) or self.find_pending(alias)
        if model is not None:
            model.aliases = tuple(each for each in model.aliases if each != alias)
        return model

    def find_pending(self, name: str) -> PendingModel | None:
        """Return the pending model with this name or alias."""
        pending = self.pending.values()
        return next((each for each in pending if name in (each.name, *each.aliases)), None)

    def hide(self, model: ModelEntry) -> None:
        """Remove the names of a model; its memory counts until it is discarded."""
        model.is_removed = True
        for name in (model.name, *model.aliases):
            del self._names[name]

    async def discard(self, model: ModelEntry) -> None:
        """Forget a hidden model that is unloaded."""
        self._models.remove(model)
        model.adapters.close(errors.ModelNotFound(model=model.name))
        if model.processor is not None:
            await asyncio.to_thread(model.processor.close)

    def watched(self, name: str = "") -> dict[str, ModelEntry | PendingModel]:
        """Return the model with this name, or all, with the pending ones."""
        models: list[ModelEntry | PendingModel] = [*self.pending.values()]
        models += [model for model in self if not model.is_removed]
        return {model.name: model for model in models if name in ("", model.name)}

    def set_load_marker(self, marker: LoadMarker) -> None:
        """Set the marker of the adapters of all models, also of those that are added later."""
        self._load_marker = marker
        for model in self:
            model.adapters.load_marker = marker

    def resolve(self, name: str, project: str) -> ResolvedModel:
        """Resolve a model name, an alias, or the name of an adapter visible to the project. An
        empty name is the first model. Raises `ModelNotFound`."""
        adapter = None if self.has_model(name) else self._visible_adapter(name, project)
        if adapter is None:
            return ResolvedModel(self.find_model(name))
        return ResolvedModel(self._names[adapter.model], adapter)

    def find_model(
        self,
        name: str,
        preferred: ModelClass | None = None,
        *,
        operation: str = "",
        project: str = "",
    ) -> ModelEntry:
        """Return the model with this name or alias. An empty name is the first model of the
        preferred class that is no upstream's, except that those may embed, else the first model.

        Raises `ModelNotFound`, `ModelCannot` with the operation if the name is an adapter's, or
        `ModelLoading` or `ModelLoadFailed` if the model is pending.
        """
        if not name:
            named = [model for model in self if not model.is_removed]
            usable = [model for model in named if not model.file.problem] or named
            here = [model for model in usable if preferred is not None and model.upstream is None]
            able = usable if preferred is ModelClass.ENCODER else here
            matching = (model for model in able if model.file.model_class is preferred)
            return next(matching, (here or usable)[0])
        if name in self._names:
            return self._names[name]
        if self._visible_adapter(name, project) is not None:
            raise errors.ModelCannot(model=name, model_class="adapter", operation=operation)
        if (pending := self.find_pending(name)) is None:
            raise errors.ModelNotFound(model=name)
        if pending.problem:
            raise errors.ModelLoadFailed(model=name, problem=pending.problem)
        raise errors.ModelLoading(model=name, retry_after=_DOWNLOAD_RETRY_S)

    def find_adapter_model(self, adapter: str, project: str = "") -> ModelEntry | None:
        """Return the base model of a project's adapter; an empty project is the operator's."""
        return next((model for model in self if model.adapters.find(adapter, project)), None)

    def find_adapter(self, name: str, project: str) -> Adapter:
        """Return the adapter generation for new requests of a project.

        Raises `AdapterNotFound`, or the error with which the engine failed to reload it.
        """
        adapter = self._visible_adapter(name, project)
        if adapter is None:
            raise errors.AdapterNotFound(adapter=name)
        return self._names[adapter.model].adapters.get(name, adapter.project)

    def standing_adapters(self, model: ModelEntry, project: str) -> list[Adapter]:
        """Return the adapters for requests of the project that name the model but no adapter."""
        return [
            adapter
            for adapter in model.adapters.current()
            if adapter.project == project and adapter.standing_scale and adapter.error is None
        ]

    def visible_models(self, project: str) -> list[ResolvedModel]:
        """Return the models and adapters that are visible to a project, sorted by name."""
        models = [ResolvedModel(model) for model in self if not model.is_removed]
        adapters = [
            ResolvedModel(model, adapter)
            for model in self
            for adapter in model.adapters.current()
            if adapter is self._visible_adapter(adapter.name, project)
        ]
        return sorted(models + adapters, key=lambda resolved: resolved.name)

    def _visible_adapter(self, name: str, project: str) -> Adapter | None:
        """The project's own adapter with this name, else the operator's."""
        for owner in dict.fromkeys((project, "")):
            for model in self:
                adapter = model.adapters.find(name, owner)
                if adapter is not None and not model.is_removed:
                    return adapter
        return None

    @property
    def engines(self) -> list[EngineClient]:
        """The engines of all loaded models, in the order of the models."""
        return [model.engine for model in self if model.engine is not None]

    @property
    def media(self) -> dict[str, MediaProcessor]:
        """The encoders of all loaded models with a projector, by the names of the models."""
        return {model.name: model.media for model in self if model.media is not None}

    def close(self) -> None:
        """Close the vocabularies and the adapter files."""
        for model in self:
            model.adapters.close(errors.Draining())
            if model.processor is not None:
                model.processor.close()
                model.processor = None
