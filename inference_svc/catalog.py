"""The models this server answers for: a record each, by name; the first where a request names
none."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NoReturn

from inference_svc.chat.pairs import PairTokenizer
from inference_svc.chat.parsers import TurnFormat
from inference_svc.chat.templates import ModelTemplate
from inference_svc.chat.tokenizing import PromptTokenizer
from inference_svc.constraints.compiler import GrammarVocabulary
from inference_svc.engine.sampling import Sampling
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.description import ModelClass, ModelFile
from inference_svc.models.sizing import RequestedLimits
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


class Catalog:
    """All served models, in the order in which they were configured; empty until they are
    loaded."""

    def __init__(self) -> None:
        self.digests_known = asyncio.Event()
        self._models: dict[str, ServedModel] = {}

    def fill(self, models: Sequence[ServedModel]) -> None:
        """Open for requests."""
        self._models = {model.name: model for model in models}

    @property
    def is_open(self) -> bool:
        """Whether the models are there."""
        return bool(self._models)

    def get(self, name: str, preferred: ModelClass | None = None) -> ServedModel:
        """The model of this name; for an empty one the first of the preferred class, else the
        first. Raises `ModelNotFound` or `ModelLoading`."""
        if not self._models:
            raise ModelLoading(model=name, retry_after=LOADING_RETRY_S)
        if not name:
            models = list(self._models.values())
            fitting = (model for model in models if model.file.model_class is preferred)
            return next(fitting, models[0])
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(model=name)
        return model

    async def digests(self) -> dict[str, str]:
        """The SHA-256 of every model by name, in hex, once they are known."""
        await self.digests_known.wait()
        return {name: model.digest for name, model in self._models.items()}

    def all(self) -> list[ServedModel]:
        """Sorted by name."""
        return sorted(self._models.values(), key=lambda model: model.name)

    def close(self) -> None:
        """Close the vocabularies."""
        for model in self._models.values():
            model.vocabulary.close()
        self._models = {}
