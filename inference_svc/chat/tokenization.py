"""Tokenizes prompts without blocking the event loop.

Short texts are tokenized at once, longer ones in a thread (llama.cpp releases the GIL), very long
ones in a sandboxed child process.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from inference_svc.chat.templates import RenderedPrompt
from inference_svc.sandbox_jobs import TOKENIZE
from svc_kit.errors import InvalidField, TooLong
from svc_kit.sandbox.jobs import JobFailed, JobRunner

# Up to the first tokenizing takes a millisecond or two; up to the second a thread's stack is safe.
INLINE_BYTES = 4 * 1024
THREAD_BYTES = 16 * 1024


class PromptVocabulary(Protocol):
    """What tokenizing needs of a vocabulary."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""

    @property
    def adds_bos(self) -> bool:
        """Whether the model wants `bos` before every prompt."""

    def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, field: str
    ) -> list[int]:
        """Turn a text into token ids."""


class TextToTokenize(NamedTuple):
    """A text and how its special tokens are treated."""

    text: str
    add_special: bool
    parse_special: bool


class PromptTokenizer:
    """Tokenizes for one model. `model_path` lets a child process load the same vocabulary."""

    def __init__(
        self,
        vocabulary: PromptVocabulary,
        jobs: JobRunner,
        model_path: Path,
        inline_bytes: int = INLINE_BYTES,
        thread_bytes: int = THREAD_BYTES,
    ) -> None:
        self._vocabulary = vocabulary
        self._jobs = jobs
        self._model_path = str(model_path.resolve())
        self._inline_bytes = inline_bytes
        self._thread_bytes = thread_bytes

    async def tokenize(
        self,
        text: str,
        *,
        add_special: bool,
        parse_special: bool,
        limit_bytes: int,
        field: str = "prompt",
    ) -> list[int]:
        """Tokenize a text. `limit_bytes` bounds it in UTF-8; `field` is what errors call it.

        Raises:
            InvalidField: it is not valid Unicode, or tokenizing it overran a limit.
            TooLong: it is over `limit_bytes`.
            QueueFull: too many long texts wait already.
        """
        texts = [TextToTokenize(text, add_special, parse_special)]
        return (await self._tokenize_all(texts, limit_bytes, field))[0]

    async def tokenize_each(
        self, texts: Sequence[TextToTokenize], *, field: str
    ) -> list[list[int]]:
        """Tokenize many texts, whose lengths were checked before; short ones go together.

        Raises: as `tokenize`.
        """
        found: list[list[int]] = []
        group: list[TextToTokenize] = []
        size = 0
        for each in texts:
            length = _utf8_bytes(each.text, field)
            if group and size + length > self._thread_bytes:
                found += await self._tokenize_all(group, size, field)
                group, size = [], 0
            group.append(each)
            size += length
        return found + await self._tokenize_all(group, size, field)

    async def tokenize_prompt(
        self, prompt: RenderedPrompt, *, limit_bytes: int, field: str = "messages"
    ) -> list[int]:
        """Tokenize a rendered conversation: control tokens count in its trusted spans only.

        The model's begin token is added where the model wants it and the template left it out.

        Raises: as `tokenize`.
        """
        texts = [TextToTokenize(span.text, False, span.trusted) for span in prompt.spans]
        parts = await self._tokenize_all(texts, limit_bytes, field)
        tokens = [token for part in parts for token in part]
        bos = self._vocabulary.bos
        if self._vocabulary.adds_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    async def _tokenize_all(
        self, texts: Sequence[TextToTokenize], limit_bytes: int, field: str
    ) -> list[list[int]]:
        size = sum(_utf8_bytes(text.text, field) for text in texts)
        if size > limit_bytes:
            raise TooLong(field=field, length=size, limit=limit_bytes, unit="bytes")
        if size <= self._inline_bytes:
            return self._tokenize_here(texts, field)
        if size <= self._thread_bytes:
            return await asyncio.to_thread(self._tokenize_here, texts, field)
        payload: dict[str, Any] = {"model": self._model_path, "texts": texts}
        try:
            tokens: list[list[int]] = await self._jobs.run(TOKENIZE, payload, key=self._model_path)
        except JobFailed as failed:
            raise InvalidField(field=field, problem=f"tokenizing it failed: {failed}") from None
        return tokens

    def _tokenize_here(self, texts: Sequence[TextToTokenize], field: str) -> list[list[int]]:
        return [
            self._vocabulary.tokenize(
                text, add_special=add_special, parse_special=parse_special, field=field
            )
            for text, add_special, parse_special in texts
        ]


def _utf8_bytes(text: str, field: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidField(
            field=field, problem="not valid Unicode: it has a lone surrogate"
        ) from None
