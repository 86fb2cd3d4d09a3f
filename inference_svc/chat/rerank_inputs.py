"""How a query and a document become one input of a reranker.

Most were trained on both texts with the model's own separators. Some that also generate were
trained on a prompt, which their file carries as the template "rerank". What callers write is never
read as control tokens, in either form.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from inference_svc.chat.tokenization import PromptTokenizer, TextToTokenize

_PLACES = re.compile(r"(\{query\}|\{document\})")


class PairVocabulary(Protocol):
    """What pairs need of a vocabulary."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""

    @property
    def pair_separator(self) -> int | None:
        """What stands between two texts beside the end of the first."""

    @property
    def control_texts(self) -> tuple[str, ...]:
        """The texts of control tokens."""


class PairTokenizer:
    """Makes the inputs of one model. `template` is its file's own form of a pair, if it has one."""

    def __init__(
        self, vocabulary: PairVocabulary, tokenizer: PromptTokenizer, template: str | None
    ) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._template = template

    async def pairs(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """One token list a document. Raises as `PromptTokenizer.tokenize`."""
        if self._template is not None:
            return await self._filled(self._template, query, documents)
        texts = [TextToTokenize(text, True, False) for text in (query, *documents)]
        first, *others = await self._tokenizer.tokenize_each(texts, field="documents")
        separator = self._vocabulary.pair_separator
        head = first if separator is None else [*first, separator]
        return [[*head, *self._without_bos(tokens)] for tokens in others]

    def _without_bos(self, tokens: list[int]) -> list[int]:
        return tokens[1:] if tokens[:1] == [self._vocabulary.bos] else tokens

    async def _filled(self, template: str, query: str, documents: Sequence[str]) -> list[list[int]]:
        spans = [self._spans(template, query, document) for document in documents]
        flat = [span for each in spans for span in each]
        tokens = iter(await self._tokenizer.tokenize_each(flat, field="documents"))
        return [[token for _ in each for token in next(tokens)] for each in spans]

    def _spans(self, template: str, query: str, document: str) -> list[TextToTokenize]:
        """The filled template whole, or cut around texts that hold a control token's text."""
        filling = {"{query}": query, "{document}": document}
        parts = _PLACES.split(template)
        if not any(
            text in given for text in self._vocabulary.control_texts for given in filling.values()
        ):
            whole = "".join(filling.get(part, part) for part in parts)
            return [TextToTokenize(whole, False, True)]
        return [
            TextToTokenize(filling.get(part, part), False, part not in filling)
            for part in parts
            if part
        ]
