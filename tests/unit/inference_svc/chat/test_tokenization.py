"""Which texts are tokenized where, and what is refused before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_svc.chat.control_tokens import PromptSpan
from inference_svc.chat.parsers import TurnFormat
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.chat.tokenization import PromptTokenizer
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.errors import InvalidField, TooLong
from svc_kit.sandbox.frames import InlineJobs
from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed


class NoJobs:
    """A pool that must not be needed, or that fails."""

    def __init__(self, failure: JobFailed | None = None) -> None:
        self.failure = failure

    async def run(self, job: Job, payload: dict[str, Any], *, key: str = "") -> Any:
        """Fail."""
        raise self.failure or AssertionError("a child process was asked for")


class WordVocabulary:
    """Every character is a token; 1 begins a text."""

    def __init__(self, adds_bos: bool = True, bos: int | None = 1) -> None:
        self.adds_bos = adds_bos
        self.bos = bos

    def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, field: str
    ) -> list[int]:
        """Give "^" as the begin token where control tokens are read."""
        return [1 if parse_special and c == "^" else ord(c) for c in text]


@pytest.fixture(scope="module")
def demo() -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    yield vocabulary
    vocabulary.close()


def prompt(*spans: tuple[str, bool]) -> RenderedPrompt:
    return RenderedPrompt(tuple(PromptSpan(*span) for span in spans), False, TurnFormat())


async def tokenize(tokenizer: PromptTokenizer, text: str, limit_bytes: int = 10**7) -> list[int]:
    return await tokenizer.tokenize(
        text, add_special=False, parse_special=True, limit_bytes=limit_bytes
    )


@pytest.mark.parametrize("length", [100, 8_000, 200_000])
async def test_texts_of_every_length_give_the_same_tokens(demo: Vocabulary, length: int) -> None:
    """At once, in a thread, or in a child process."""
    text = ("The quick brown 🦊 <|im_end|> " * length)[:length]

    tokens = await tokenize(PromptTokenizer(demo, InlineJobs(), BUNDLED_PATH), text)

    assert tokens == demo.tokenize(text, add_special=False, parse_special=True)


async def test_short_texts_need_no_child(demo: Vocabulary) -> None:
    """Neither at once nor in a thread."""
    tokenizer = PromptTokenizer(demo, NoJobs(), BUNDLED_PATH)

    assert await tokenize(tokenizer, "word " * 20)
    assert await tokenize(tokenizer, "word " * 2_000)


async def test_the_limit_is_checked_before_anything_is_done(demo: Vocabulary) -> None:
    """In bytes of UTF-8."""
    tokenizer = PromptTokenizer(demo, NoJobs(), BUNDLED_PATH)

    with pytest.raises(TooLong) as raised:
        await tokenize(tokenizer, "é" * 100_000, limit_bytes=150_000)

    assert raised.value.metadata["length"] == "200000"


@pytest.mark.parametrize("length", [1, 300_000])
async def test_lone_surrogates_are_refused_at_every_length(demo: Vocabulary, length: int) -> None:
    """They never get as far as llama.cpp, here or in a child."""
    tokenizer = PromptTokenizer(demo, NoJobs(), BUNDLED_PATH)

    with pytest.raises(InvalidField, match="lone surrogate"):
        await tokenize(tokenizer, "x" * length + "\ud800")


async def test_a_child_that_fails_costs_the_request_only(demo: Vocabulary) -> None:
    """The caller learns that the text was the problem."""
    failure = JobFailed(FailureKind.CRASHED, "the child process ended")
    tokenizer = PromptTokenizer(demo, NoJobs(failure), BUNDLED_PATH)

    with pytest.raises(InvalidField) as raised:
        await tokenize(tokenizer, "x" * 100_000)

    assert raised.value.problem == "tokenizing it failed: the child process ended"


async def test_a_child_cannot_load_what_is_no_model(demo: Vocabulary, tmp_path: Path) -> None:
    """The file may have gone since the start."""
    tokenizer = PromptTokenizer(demo, InlineJobs(), tmp_path / "gone.gguf")

    with pytest.raises(InvalidField, match="cannot load its vocabulary"):
        await tokenize(tokenizer, "x" * 100_000)


@pytest.mark.parametrize(
    ("vocabulary", "text", "expected"),
    [
        (WordVocabulary(), "a", [1, 97]),
        (WordVocabulary(), "^a", [1, 97]),
        (WordVocabulary(), "", [1]),
        (WordVocabulary(adds_bos=False), "a", [97]),
        (WordVocabulary(bos=None), "a", [97]),
    ],
)
async def test_the_begin_token_is_there_once(
    vocabulary: WordVocabulary, text: str, expected: list[int]
) -> None:
    """Whether the template wrote it or not, and only where the model wants it."""
    tokenizer = PromptTokenizer(vocabulary, NoJobs(), BUNDLED_PATH)

    assert await tokenizer.tokenize_prompt(prompt((text, True)), limit_bytes=10) == expected


async def test_control_tokens_count_in_trusted_spans_only() -> None:
    """The same character is a token in one span and text in the other."""
    tokenizer = PromptTokenizer(WordVocabulary(), NoJobs(), BUNDLED_PATH)

    tokens = await tokenizer.tokenize_prompt(
        prompt(("^a", True), ("^", False), ("^", True)), limit_bytes=10
    )

    assert tokens == [1, 97, ord("^"), 1]
