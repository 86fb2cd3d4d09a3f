"""Tokenization in this thread, in another thread or in a child process, and its limits."""

from pathlib import Path
from typing import Any

import pytest

from inference_svc.chat.control_tokens import PromptSpan
from inference_svc.chat.parsers.formats import TurnFormat
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.chat.tokenization import PromptTokenizer, PromptVocabulary, TextToTokenize
from inference_svc.engine.media import MediaKind, MediaSpan, VectorFile, media_tokens
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.media.model import EncodedMedia, TextChunk, VectorChunk
from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.errors import ContextLengthExceeded, InvalidField, TemplateFailed, TooLong
from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed, JobRunner
from tests.support.sandbox_jobs import InlineJobs


class FailingJobs:
    """A sandbox in which jobs fail; without a failure no job may be started."""

    def __init__(self, failure: JobFailed | None = None) -> None:
        self.failure = failure

    async def run(self, job: Job, payload: dict[str, Any], *, key: str = "") -> Any:
        raise self.failure or AssertionError("a job was started in a child process")


class CharacterVocabulary:
    """Each character is a token; "^" is the text of the BOS token 1."""

    longest_piece_bytes = 1

    def __init__(self, adds_bos: bool = True, bos: int | None = 1) -> None:
        self.adds_bos = adds_bos
        self.bos = bos

    def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, field: str
    ) -> list[int]:
        """Return the code points, and BOS for "^" if control tokens are parsed."""
        return [1 if parse_special and c == "^" else ord(c) for c in text]


def make_tokenizer(
    vocabulary: PromptVocabulary, jobs: JobRunner, path: Path = BUNDLED_PATH
) -> PromptTokenizer:
    return PromptTokenizer(vocabulary, jobs, path, limit_bytes=10**7)


@pytest.fixture
def tokenizer(vocabulary: Vocabulary) -> PromptTokenizer:
    """A tokenizer that may not use a child process."""
    return make_tokenizer(vocabulary, FailingJobs())


async def tokenize(tokenizer: PromptTokenizer, text: str) -> list[int]:
    return [*await tokenizer.tokenize(TextToTokenize(text, parse_special=True))]


async def tokenize_spans(vocabulary: CharacterVocabulary, *spans: tuple[str, bool]) -> list[int]:
    """Tokenize a prompt of texts that are trusted or not."""
    prompt = RenderedPrompt(tuple(PromptSpan(*span) for span in spans), False, TurnFormat())
    return [*(await make_tokenizer(vocabulary, FailingJobs()).tokenize_prompt(prompt)).tokens]


@pytest.mark.parametrize("text", ["x" * 2_000_000, "the cat " * 250_000, " " * 2_000_000])
async def test_a_text_that_is_too_long_for_sure_is_not_tokenized(
    vocabulary: Vocabulary, text: str
) -> None:
    """The error counts the tokens that it has at least. Nothing is refused by it that would fit."""
    refusing, tokenizing = (
        make_tokenizer(vocabulary, jobs) for jobs in (FailingJobs(), InlineJobs())
    )
    with pytest.raises(ContextLengthExceeded) as refused:
        await refusing.tokenize(TextToTokenize(text), max_tokens=1000)
    num_tokens = len(await tokenizing.tokenize(TextToTokenize(text[:100_000])))
    fitting = await tokenizing.tokenize(TextToTokenize(text[:100_000]), max_tokens=num_tokens)

    assert refused.value.context_tokens == 1000
    assert 1000 < refused.value.prompt_tokens <= 20 * num_tokens
    assert len(fitting) == num_tokens


@pytest.mark.parametrize("length", [100, 8_000, 200_000])
async def test_texts_of_any_length_have_the_same_tokens(
    vocabulary: Vocabulary, length: int
) -> None:
    """Whether they are tokenized in this thread, in another thread or in a child process."""
    text = ("The quick brown 🦊 <|im_end|> " * length)[:length]

    tokens = await tokenize(make_tokenizer(vocabulary, InlineJobs()), text)

    assert tokens == vocabulary.tokenize(text, add_special=False, parse_special=True)


async def test_short_texts_are_tokenized_in_this_process(tokenizer: PromptTokenizer) -> None:
    """In this thread or in another one."""
    assert await tokenize(tokenizer, "word " * 20)
    assert await tokenize(tokenizer, "word " * 2_000)


async def test_the_size_limit_is_checked_first(vocabulary: Vocabulary) -> None:
    """In bytes of UTF-8."""
    tokenizer = PromptTokenizer(vocabulary, FailingJobs(), BUNDLED_PATH, limit_bytes=150_000)
    with pytest.raises(TooLong) as raised:
        await tokenize(tokenizer, "é" * 100_000)

    assert raised.value.metadata["length"] == "200000"


@pytest.mark.parametrize("length", [1, 300_000])
async def test_lone_surrogates_are_refused_at_any_length(
    tokenizer: PromptTokenizer, length: int
) -> None:
    """Before llama.cpp gets the text, in this process or in a child process."""
    with pytest.raises(InvalidField, match="lone surrogate"):
        await tokenize(tokenizer, "x" * length + "\ud800")


async def test_a_failed_job_is_an_invalid_field(vocabulary: Vocabulary) -> None:
    failure = JobFailed(FailureKind.CRASHED, "the child process ended")
    tokenizer = make_tokenizer(vocabulary, FailingJobs(failure))

    with pytest.raises(InvalidField) as raised:
        await tokenize(tokenizer, "x" * 100_000)

    assert raised.value.problem == "tokenizing it failed: the child process ended"


async def test_a_missing_model_file_is_an_invalid_field(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """It may have been removed after the start."""
    tokenizer = make_tokenizer(vocabulary, InlineJobs(), tmp_path / "missing.gguf")

    with pytest.raises(InvalidField, match="cannot load its vocabulary"):
        await tokenize(tokenizer, "x" * 100_000)


@pytest.mark.parametrize(
    ("vocabulary", "text", "expected"),
    [
        (CharacterVocabulary(), "a", [1, 97]),
        (CharacterVocabulary(), "^a", [1, 97]),
        (CharacterVocabulary(), "", [1]),
        (CharacterVocabulary(adds_bos=False), "a", [97]),
        (CharacterVocabulary(bos=None), "a", [97]),
    ],
)
async def test_the_bos_token_is_added_once(
    vocabulary: CharacterVocabulary, text: str, expected: list[int]
) -> None:
    """Unless the template wrote it, and only if the model uses it."""
    assert await tokenize_spans(vocabulary, (text, True)) == expected


async def test_control_tokens_are_parsed_in_trusted_spans_only() -> None:
    """The same character is a token in one span and text in another."""
    tokens = await tokenize_spans(CharacterVocabulary(), ("^a", True), ("^", False), ("^", True))

    assert tokens == [1, 97, ord("^"), 1]


async def test_vectors_have_places_between_the_tokens() -> None:
    """Texts before, around and after them; a span for the vectors of each chunk."""
    vectors = VectorFile(Path("vectors"), 0)
    picture = EncodedMedia(
        MediaKind.IMAGE,
        (TextChunk((7,)), VectorChunk(3, 3, b"a", vectors), VectorChunk(2, 1, b"b", vectors)),
    )
    spans = (PromptSpan("x", True), PromptSpan("", False, media=0), PromptSpan("yz", True))
    prompt = RenderedPrompt(spans, False, TurnFormat())

    tokens, media = await make_tokenizer(
        CharacterVocabulary(adds_bos=True), FailingJobs()
    ).tokenize_prompt(prompt, [picture])

    assert [*tokens] == [
        *(1, ord("x"), 7),
        *media_tokens(b"a", 3),
        *media_tokens(b"b", 2),
        *map(ord, "yz"),
    ]
    assert media == (
        MediaSpan(3, 3, 3, b"a", vectors),
        MediaSpan(6, 2, 1, b"b", vectors),
    )


async def test_a_prompt_does_not_end_with_vectors() -> None:
    """The next token is sampled from the logits of a text token."""
    picture = EncodedMedia(MediaKind.IMAGE, (VectorChunk(3, 3, b"a"),))
    prompt = RenderedPrompt((PromptSpan("", False, media=0),), False, TurnFormat())

    with pytest.raises(TemplateFailed):
        await make_tokenizer(CharacterVocabulary(), FailingJobs()).tokenize_prompt(
            prompt, [picture]
        )
