"""The models of this server, and the resolution of a request's `model`.

A model has its file, read at the start; its front (`ServedModel`: vocabulary and template); and its
engine, while it is loaded.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from inference_svc.chat.parsers import TurnFormat
from inference_svc.chat.rerank_inputs import PairTokenizer
from inference_svc.chat.templates import ModelTemplate
from inference_svc.chat.tokenization import PromptTokenizer
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.adapter_registry import Adapter, AdapterRegistry
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.messages import LoadProgress, ModelReady
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.model_pool.eviction import ModelState, Resident
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import ModelClass, ModelFile
from inference_svc.models.placement import LoadPolicy
from inference_svc.structured_output.compiler import GrammarVocabulary
from svc_kit.errors import AdapterNotFound, Draining, EngineRestarting, ModelCannot, ModelNotFound
from svc_kit.lifecycle import StartupError


@dataclass(slots=True)
class ServedModel:
    """The front of a model: what turns requests into tokens and tokens into answers."""

    file: ModelFile
    vocabulary: Vocabulary
    template: ModelTemplate
    turn_format: TurnFormat
    tokenizer: PromptTokenizer
    default_sampling: Sampling = field(default_factory=Sampling)

    @property
    def pairs(self) -> PairTokenizer:
        """How a query and a document become one input."""
        return PairTokenizer(self.vocabulary, self.tokenizer, self.file.rank_template)

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.file.name

    @property
    def grammar_vocabulary(self) -> GrammarVocabulary:
        """What building a grammar needs to know of the vocabulary."""
        vocabulary = self.vocabulary
        return GrammarVocabulary(
            vocabulary.size, vocabulary.control_tokens, tuple(sorted(vocabulary.end_tokens))
        )

    def visible_tokens(self, texts: Sequence[str]) -> frozenset[int]:
        """Control tokens in these texts: they must be rendered for a parser to see them."""
        return self.vocabulary.control_tokens_in(texts)


class LoadedModel(NamedTuple):
    """A model that a call uses: its front and its engine, which stays until the call ends; `digest`
    is empty until it is known."""

    front: ServedModel
    worker: EngineClient
    digest: str = ""

    @property
    def ready(self) -> ModelReady:
        """The sizes that the engine has. Raises `EngineRestarting` where it was never ready."""
        if self.worker.ready is None:
            raise EngineRestarting()
        return self.worker.ready


@dataclass(slots=True)
class KnownModel:
    """A model that requests may name. `requested` are the sizes of its next load; `version` grows
    with each change that watchers should see."""

    file: ModelFile
    requested: RequestedLimits
    resident: Resident
    policy: LoadPolicy = LoadPolicy.START
    aliases: tuple[str, ...] = ()
    front: ServedModel | None = None
    worker: EngineClient | None = None
    progress: LoadProgress | None = None
    ready_at: datetime | None = None
    digest: str = ""
    digest_known: asyncio.Event = field(default_factory=asyncio.Event)
    adapters: AdapterRegistry = field(default_factory=AdapterRegistry)
    version: int = 0

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.file.name

    @property
    def state(self) -> ModelState:
        """Where it is in its life; one whose engine died is being loaded."""
        return ModelState.LOADING if self.is_down else self.resident.state

    @property
    def is_down(self) -> bool:
        """Whether it is loaded, but its engine died and is not back yet."""
        return self.resident.state is ModelState.READY and self.is_coming_back

    @property
    def is_coming_back(self) -> bool:
        """Whether its engine died and is started again, and takes what it had; also that of a model
        which is to go, while calls still use it."""
        return self.worker is not None and self.worker.state is EngineState.RESTARTING


class ResolvedModel(NamedTuple):
    """The model of a request, and the adapter that it names, if any."""

    model: KnownModel
    adapter: Adapter | None = None

    @property
    def name(self) -> str:
        """The name in its full form."""
        return self.adapter.name if self.adapter is not None else self.model.name


class Catalog:
    """All known models, in the order in which they were configured.

    Raises:
        StartupError: two models share a name or an alias.
    """

    def __init__(self, models: Iterable[KnownModel]) -> None:
        self._models: list[KnownModel] = []
        self._names: dict[str, KnownModel] = {}
        for model in models:
            self._models.append(model)
            for name in (model.name, *model.aliases):
                other = self._names.setdefault(name, model)
                if other is not model:
                    raise StartupError(
                        f"the name {name!r} is given to {other.name!r} and to {model.name!r}"
                    )

    def __iter__(self) -> Iterator[KnownModel]:
        return iter(self._models)

    def has_model(self, name: str) -> bool:
        """Whether a model has this name or alias."""
        return name in self._names

    def find(self, name: str, project: str) -> ResolvedModel:
        """What a name stands for in a project: a model by its name or alias, or an adapter; the
        first model for an empty one. Raises `ModelNotFound`."""
        adapter = None if self.has_model(name) else self._visible(name, project)
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
    ) -> KnownModel:
        """The model of this name or alias; for an empty one the first of the preferred class, else
        the first. Raises `ModelNotFound`, and for an adapter `ModelCannot` with the operation."""
        if not name:
            fitting = (model for model in self if model.file.model_class is preferred)
            return next(fitting, self._models[0])
        if name in self._names:
            return self._names[name]
        if self._visible(name, project) is not None:
            raise ModelCannot(model=name, model_class="adapter", operation=operation)
        raise ModelNotFound(model=name)

    def owner_of(self, adapter: str, project: str = "") -> KnownModel | None:
        """The model that the project's adapter of this name is for; an operator's without one."""
        return next((model for model in self if model.adapters.find(adapter, project)), None)

    def find_adapter(self, name: str, project: str) -> Adapter:
        """The generation that new requests of a project use. Raises `AdapterNotFound`, or why the
        engine could not load it again."""
        adapter = self._visible(name, project)
        if adapter is None:
            raise AdapterNotFound(adapter=name)
        return self._names[adapter.model].adapters.get(name, adapter.project)

    def standing(self, model: KnownModel, project: str) -> list[Adapter]:
        """The adapters that a project's requests for the model use where they name none."""
        return [
            adapter
            for adapter in model.adapters.current()
            if adapter.project == project and adapter.standing_scale and adapter.error is None
        ]

    def all(self, project: str) -> list[ResolvedModel]:
        """Everything that a project's request may name, sorted."""
        plain = [ResolvedModel(model) for model in self]
        adapted = [
            ResolvedModel(model, each)
            for model in self
            for each in model.adapters.current()
            if each is self._visible(each.name, project)
        ]
        return sorted(plain + adapted, key=lambda named: named.name)

    def _visible(self, name: str, project: str) -> Adapter | None:
        """The project's own adapter of a name, else the operator's."""
        for owner in dict.fromkeys((project, "")):
            for model in self:
                if (adapter := model.adapters.find(name, owner)) is not None:
                    return adapter
        return None

    @property
    def workers(self) -> list[EngineClient]:
        """The engines that are there, in the models' order."""
        return [model.worker for model in self if model.worker is not None]

    def close(self) -> None:
        """Close the vocabularies, and give up the files of adapters."""
        for model in self:
            model.adapters.close(Draining())
            if model.front is not None:
                model.front.vocabulary.close()
                model.front = None
