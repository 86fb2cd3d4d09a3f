"""Builds the inputs of rerankers from a query and documents.

Most rerankers are trained on both texts with the model's separators. Some generative models are
trained on a prompt, which the model file has as the template "rerank". Control tokens in the
caller's texts are never parsed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from inference_svc.chat.tokenization import PromptTokenizer, TextToTokenize

_PLACEHOLDERS = re.compile(r"(\{query\}|\{document\})")


@dataclass(frozen=True, slots=True)
class PairTokenizer:
    """Builds the inputs of one model. `template` is the rerank template of its file, if any;
    `separator` is the token between two texts, after the end token of the first, if any."""

    tokenizer: PromptTokenizer
    template: str | None
    bos: int | None
    separator: int | None
    control_texts: tuple[str, ...]

    async def pairs(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each pair. Raises as `PromptTokenizer.tokenize`."""
        if self.template is not None:
            return await self._fill(self.template, query, documents)
        texts = [TextToTokenize(text, add_special=True) for text in (query, *documents)]
        first, *others = await self.tokenizer.tokenize_each(texts, field="documents")
        head = first if self.separator is None else [*first, self.separator]
        return [[*head, *self._without_bos(tokens)] for tokens in others]

    def _without_bos(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[1:] if tokens and tokens[0] == self.bos else tokens

    async def _fill(self, template: str, query: str, documents: Sequence[str]) -> list[list[int]]:
        spans = [self._spans(template, query, document) for document in documents]
        flat = [span for each in spans for span in each]
        tokens = iter(await self.tokenizer.tokenize_each(flat, field="documents"))
        return [[token for _ in each for token in next(tokens)] for each in spans]

    def _spans(self, template: str, query: str, document: str) -> list[TextToTokenize]:
        """The filled template as one text, or split around texts that contain control tokens."""
        values = {"{query}": query, "{document}": document}
        parts = _PLACEHOLDERS.split(template)
        if not any(text in value for text in self.control_texts for value in values.values()):
            whole = "".join(values.get(part, part) for part in parts)
            return [TextToTokenize(whole, parse_special=True)]
        return [
            TextToTokenize(values.get(part, part), parse_special=part not in values)
            for part in parts
            if part
        ]
