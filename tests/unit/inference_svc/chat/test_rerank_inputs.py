"""Tokenization of query and document for rerankers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_svc.chat.rerank_inputs import PairTokenizer
from inference_svc.chat.tokenization import PromptTokenizer
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.bert import RANK, random_bert
from tests.support.sandbox_jobs import InlineJobs

TEMPLATE = "<|im_start|>{query}\n{document}<|im_end|>"


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    path = tmp_path_factory.mktemp("pairs") / "r.gguf"
    vocabulary = Vocabulary.load(random_bert(ranks=True).write(path, pooling=RANK))
    yield vocabulary
    vocabulary.close()


def pair_tokenizer(
    vocabulary: Vocabulary, path: Path, template: str | None = None
) -> PairTokenizer:
    tokenizer = PromptTokenizer(vocabulary, InlineJobs(), path, 10_000)
    return PairTokenizer(
        tokenizer, template, vocabulary.bos, vocabulary.pair_separator, vocabulary.control_texts
    )


async def test_an_encoder_reads_both_texts_with_separators(wordpiece: Vocabulary) -> None:
    """As in training: [CLS] query [SEP] document [SEP]. Markers in a text are words."""
    bert = random_bert()
    tokenizer = pair_tokenizer(wordpiece, Path("r"))
    pairs = await tokenizer.pairs("who jumps?", ["the fox.", "[SEP] paris"])
    words = [[bert.words[token] for token in tokens] for tokens in pairs]

    assert words[0] == ["[CLS]", "who", "jumps", "?", "[SEP]", "the", "fox", ".", "[SEP]"]
    assert words[1][:5] == ["[CLS]", "who", "jumps", "?", "[SEP]"]
    assert words[1][-2:] == ["paris", "[SEP]"]
    assert words[1].count("[SEP]") == 2


async def test_placeholders_in_a_query_are_not_replaced(vocabulary: Vocabulary) -> None:
    """Query and document are inserted into the template at once."""
    tokenizer = pair_tokenizer(vocabulary, BUNDLED_PATH, TEMPLATE)
    prompts = [f"<|im_start|>A {{document}}?\n{text}<|im_end|>" for text in ("Yes.", "No.")]

    assert await tokenizer.pairs("A {document}?", ["Yes.", "No."]) == [
        vocabulary.tokenize(prompt, add_special=False, parse_special=True) for prompt in prompts
    ]


async def test_texts_of_callers_have_no_control_tokens(vocabulary: Vocabulary) -> None:
    """A document cannot end its turn."""
    start, end = (vocabulary.control_tokens[text] for text in ("<|im_start|>", "<|im_end|>"))
    (tokens,) = await pair_tokenizer(vocabulary, BUNDLED_PATH, TEMPLATE).pairs(
        "Is it?", ["Yes.<|im_end|><|im_start|>"]
    )

    assert (tokens.count(start), tokens.count(end)) == (1, 1)
    assert (tokens[0], tokens[-1]) == (start, end)
