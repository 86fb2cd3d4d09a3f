"""Tokenizes prompts without blocking the event loop.

Short texts are tokenized inline, longer ones in a thread (llama.cpp releases the GIL), and very
long ones in a sandboxed child process.
"""

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from inference_svc.chat.templates import RenderedPrompt
from inference_svc.engine.media import MediaSpan, media_tokens
from inference_svc.media.model import EncodedMedia, MediaChunk, TextChunk
from inference_svc.sandbox_jobs import TOKENIZE
from inference_svc.validation import count_bytes
from svc_kit.errors import ContextLengthExceeded, InvalidField, TemplateFailed, TooLong
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var
from svc_kit.sandbox.jobs import JobFailed, JobRunner
from svc_kit.tasks import retrieve_exception

# Tokenizing up to INLINE_BYTES takes 1 to 2 ms; the stack of a thread suffices for THREAD_BYTES.
INLINE_BYTES = 4 * 1024
THREAD_BYTES = 16 * 1024
MAX_LONG_TEXTS = 2
"""Longer ones of a model that are tokenized at once, each of another project."""


class PromptVocabulary(Protocol):
    @property
    def bos(self) -> int | None:
        """The beginning-of-sequence token."""

    @property
    def adds_bos(self) -> bool:
        """Whether the model expects `bos` before every prompt."""

    @property
    def longest_piece_bytes(self) -> int | None:
        """The most bytes of a text for each of its tokens; None if these may be any number."""

    def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, field: str
    ) -> list[int]:
        """Turn a text into token ids."""


class TextToTokenize(NamedTuple):
    """A text, whether the special tokens that the model expects are added, and whether control
    tokens written in it are parsed."""

    text: str
    add_special: bool = False
    parse_special: bool = False


class TokenizedPrompt(NamedTuple):
    """The tokens of a prompt, and where the vectors of its pictures and sounds are among them. In a
    list they would take nine times the memory."""

    tokens: "array[int]"
    media: tuple[MediaSpan, ...] = ()


class PromptTokenizer:
    """Tokenizes prompts of at most `limit_bytes` in UTF-8 for one model. Child processes load its
    vocabulary from `model_path`."""

    def __init__(
        self, vocabulary: PromptVocabulary, jobs: JobRunner, model_path: Path, limit_bytes: int
    ) -> None:
        self._vocabulary = vocabulary
        self._jobs = jobs
        self._model_path = str(model_path.resolve())
        self._limit_bytes = limit_bytes
        self._long_texts = FairSemaphore(MAX_LONG_TEXTS, client_limit=1)

    async def tokenize(
        self, text: TextToTokenize, *, field: str = "prompt", max_tokens: int | None = None
    ) -> Sequence[int]:
        """Tokenize a text; `field` names it in errors. Texts that have more than `max_tokens` for
        sure are not tokenized.

        Raises:
            InvalidField: The text is not valid Unicode, or tokenizing it exceeded a limit.
            ContextLengthExceeded: The text has more than `max_tokens`.
            TooLong: The text exceeds the limit.
            QueueFull: Too many long texts are queued.
        """
        return (await self._tokenize_all([text], self._limit_bytes, field, max_tokens))[0]

    async def tokenize_each(
        self, texts: Sequence[TextToTokenize], *, field: str
    ) -> list[Sequence[int]]:
        """Tokenize many texts of checked lengths in groups. Raises as `tokenize`."""
        results: list[Sequence[int]] = []
        group: list[TextToTokenize] = []
        size = 0
        for each in texts:
            length = count_bytes(field, each.text)
            if group and size + length > THREAD_BYTES:
                results += await self._tokenize_all(group, size, field)
                group, size = [], 0
            group.append(each)
            size += length
        return results + await self._tokenize_all(group, size, field)

    async def tokenize_prompt(
        self, prompt: RenderedPrompt, media: Sequence[EncodedMedia] = ()
    ) -> TokenizedPrompt:
        """Tokenize a rendered conversation. Raises as `tokenize` and `join`."""
        return self.join(prompt, await self.tokenize_spans(prompt), media)

    async def tokenize_spans(
        self, prompt: RenderedPrompt, max_tokens: int | None = None
    ) -> list[Sequence[int]]:
        """Tokenize each text of a rendered conversation; control tokens are only parsed in trusted
        spans. Raises as `tokenize`."""
        texts = [
            TextToTokenize(span.text, parse_special=span.trusted)
            for span in prompt.spans
            if span.media is None
        ]
        return await self._tokenize_all(texts, self._limit_bytes, "messages", max_tokens)

    def join(
        self,
        prompt: RenderedPrompt,
        texts: Sequence[Sequence[int]],
        media: Sequence[EncodedMedia],
    ) -> TokenizedPrompt:
        """Join the tokenized texts of a conversation with its pictures and sounds, both in order.
        The BOS token is added if the model expects it and the template omits it. Raises
        TemplateFailed if the prompt ends with a picture or sound."""
        parts = iter(texts)
        chunks: list[MediaChunk] = []
        for span in prompt.spans:
            if span.media is None:
                chunks.append(TextChunk(next(parts)))
            else:
                chunks += media[span.media].chunks
        bos = self._vocabulary.bos
        if self._vocabulary.adds_bos and bos is not None and not _begins_with(chunks, bos):
            chunks.insert(0, TextChunk((bos,)))
        return _join(chunks)

    async def _tokenize_all(
        self,
        texts: Sequence[TextToTokenize],
        limit_bytes: int,
        field: str,
        max_tokens: int | None = None,
    ) -> list[Sequence[int]]:
        size = sum(count_bytes(field, text.text) for text in texts)
        if size > limit_bytes:
            raise TooLong(field=field, length=size, limit=limit_bytes, unit="bytes")
        if size <= INLINE_BYTES:
            return self._tokenize_inline(texts, field)
        if size <= THREAD_BYTES:
            return await asyncio.to_thread(self._tokenize_inline, texts, field)
        if max_tokens is not None:
            await asyncio.to_thread(self._check_length, size, field, max_tokens)
        payload: dict[str, Any] = {"model": self._model_path, "texts": texts}
        try:
            result = await self._tokenize_long(payload)
        except JobFailed as failed:
            raise InvalidField(field=field, problem=f"tokenizing it failed: {failed}") from None
        return await asyncio.to_thread(_tokens_of_each, result)

    async def _tokenize_long(self, payload: dict[str, Any]) -> Mapping[str, Any]:
        """Tokenize in a child process, which takes a processor for as long as seconds, in turn. The
        turn lasts until the job has ended, also if the caller is cancelled."""
        project = project_var.get()
        await self._long_texts.acquire(1, project)

        def end_turn(job: "asyncio.Future[Any]") -> None:
            retrieve_exception(job)
            self._long_texts.release(1, project)

        job = asyncio.ensure_future(self._jobs.run(TOKENIZE, payload, key=self._model_path))
        job.add_done_callback(end_turn)
        return cast("Mapping[str, Any]", await asyncio.shield(job))

    def _check_length(self, num_bytes: int, field: str, max_tokens: int) -> None:
        longest = self._vocabulary.longest_piece_bytes
        if longest is not None and num_bytes > max_tokens * longest:
            least = -(-num_bytes // longest)
            raise ContextLengthExceeded(field=field, prompt_tokens=least, context_tokens=max_tokens)

    def _tokenize_inline(self, texts: Sequence[TextToTokenize], field: str) -> list[Sequence[int]]:
        return [
            self._vocabulary.tokenize(
                text, add_special=add_special, parse_special=parse_special, field=field
            )
            for text, add_special, parse_special in texts
        ]


def _tokens_of_each(result: Mapping[str, Any]) -> list[Sequence[int]]:
    data, begin, found = memoryview(result["tokens"]), 0, list[Sequence[int]]()
    for length in result["lengths"]:
        tokens = array("i")
        end = begin + length * tokens.itemsize
        tokens.frombytes(data[begin:end])
        found.append(tokens)
        begin = end
    return found


def _begins_with(chunks: Sequence[MediaChunk], token: int) -> bool:
    filled = (chunk for chunk in chunks if chunk.num_tokens)
    first = next(filled, None)
    return isinstance(first, TextChunk) and first.tokens[0] == token


def _join(chunks: Sequence[MediaChunk]) -> TokenizedPrompt:
    tokens = array("i")
    spans: list[MediaSpan] = []
    for chunk in chunks:
        if isinstance(chunk, TextChunk):
            tokens.extend(chunk.tokens)
            continue
        if (span := chunk.span(len(tokens))) is not None:
            spans.append(span)
        tokens += media_tokens(chunk.digest, chunk.num_tokens)
    if tokens and tokens[-1] < 0:
        raise TemplateFailed(problem="it writes no text after the last picture or sound")
    return TokenizedPrompt(tokens, tuple(spans))
