"""The models this server answers for: a record each, by name; the first where a request names
none. An adapter's name stands for its model with that adapter."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, NoReturn

from inference_svc.chat.pairs import PairTokenizer
from inference_svc.chat.parsers import TurnFormat
from inference_svc.chat.templates import ModelTemplate
from inference_svc.chat.tokenizing import PromptTokenizer
from inference_svc.constraints.compiler import GrammarVocabulary
from inference_svc.engine.sampling import Sampling
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.description import ModelClass, ModelFile
from inference_svc.models.sizing import RequestedLimits
from inference_svc.runtime.adapters import Adapter, AdapterRegistry
from inference_svc.runtime.messages import ModelReady
from svc_kit.errors import ModelCannot, ModelLoading, ModelNotFound

LOADING_RETRY_S = 2.0


@dataclass(slots=True)
class ServedModel:
    """A model that is loaded in the engine and whose vocabulary is open here."""

    file: ModelFile
    vocabulary: Vocabulary
    template: ModelTemplate
    turn_format: TurnFormat
    tokenizer: PromptTokenizer
    requested: RequestedLimits
    requested_threads: int | None
    ready: ModelReady
    ready_at: datetime
    default_sampling: Sampling = field(default_factory=Sampling)
    digest: str = ""

    @property
    def pairs(self) -> PairTokenizer:
        """How a query and a document become one input."""
        return PairTokenizer(self.vocabulary, self.tokenizer, self.file.rank_template)

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.file.name

    def check_generates(self) -> None:
        """Raise `ModelCannot` where the model's class does not generate text."""
        if self.file.model_class is not ModelClass.DECODER:
            self._refuse("generate")

    def check_embeds(self) -> None:
        """Raise `ModelCannot` where the model ranks: its vectors never leave its head."""
        if self.file.model_class is ModelClass.RERANKER:
            self._refuse("embed")

    def check_ranks(self) -> None:
        """Raise `ModelCannot` where the model has no rank head."""
        if self.file.model_class is not ModelClass.RERANKER:
            self._refuse("rerank, for it has no rank head")

    def _refuse(self, operation: str) -> NoReturn:
        raise ModelCannot(
            model=self.name, model_class=self.file.model_class.value, operation=operation
        )

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


class Named(NamedTuple):
    """What a request's `model` stands for: a model, and the adapter whose name it is, if any."""

    model: ServedModel
    adapter: Adapter | None

    @property
    def name(self) -> str:
        """The name in its full form."""
        return self.adapter.name if self.adapter is not None else self.model.name


class Catalog:
    """All served models, in the order in which they were configured; empty until they are
    loaded."""

    def __init__(self, adapters: AdapterRegistry) -> None:
        self.adapters = adapters
        self.digests_known = asyncio.Event()
        self._models: dict[str, ServedModel] = {}

    def fill(self, models: Sequence[ServedModel]) -> None:
        """Open for requests."""
        self._models = {model.name: model for model in models}

    @property
    def is_open(self) -> bool:
        """Whether the models are there."""
        return bool(self._models)

    def has_model(self, name: str) -> bool:
        """Whether a model has this name."""
        return name in self._models

    def find(self, name: str) -> Named:
        """What a name stands for; the first model for an empty one. Raises `ModelNotFound` or
        `ModelLoading`."""
        adapter = self.adapters.find(name)
        if adapter is None or name in self._models:
            return Named(self.get_plain(name), None)
        return Named(self.get_plain(adapter.model), adapter)

    def get(self, name: str) -> ServedModel:
        """The model that a name stands for, with an adapter or without. Raises like `find`."""
        return self.find(name).model

    def get_plain(
        self, name: str, preferred: ModelClass | None = None, *, operation: str = ""
    ) -> ServedModel:
        """The model of this name; for an empty one the first of the preferred class, else the
        first. Raises `ModelNotFound` or `ModelLoading`, and for an adapter `ModelCannot` with the
        operation."""
        if not self._models:
            raise ModelLoading(model=name, retry_after=LOADING_RETRY_S)
        if not name:
            models = list(self._models.values())
            fitting = (model for model in models if model.file.model_class is preferred)
            return next(fitting, models[0])
        if name in self._models:
            return self._models[name]
        if self.adapters.find(name) is not None:
            raise ModelCannot(model=name, model_class="adapter", operation=operation)
        raise ModelNotFound(model=name)

    async def digests(self) -> dict[str, str]:
        """The SHA-256 of every model by name, in hex, once they are known."""
        await self.digests_known.wait()
        return {name: model.digest for name, model in self._models.items()}

    def all(self) -> list[Named]:
        """Everything that a request may name, sorted."""
        adapted = [
            Named(self._models[adapter.model], adapter) for adapter in self.adapters.current()
        ]
        plain = [Named(model, None) for model in self._models.values()]
        return sorted(plain + adapted, key=lambda named: named.name)

    def close(self) -> None:
        """Close the vocabularies."""
        for model in self._models.values():
            model.vocabulary.close()
        self._models = {}
