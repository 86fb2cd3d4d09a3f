"""all-MiniLM-L6-v2 reproduces the published similarities."""

from collections.abc import Iterator

import numpy as np
import openai
import pytest

from tests.support.minilm import load_minilm, minilm_path
from tests.support.services import Corral, corral_up

pytestmark = pytest.mark.e2e

MODEL = "minilm"
# Cosine similarities in the documentation of sentence-transformers for this model.
PUBLISHED = [
    ("The weather is lovely today.", "It's so sunny outside!", 0.6660),
    ("The weather is lovely today.", "He drove to the stadium.", 0.1046),
    ("It's so sunny outside!", "He drove to the stadium.", 0.1411),
    ("The cat sits outside", "The dog plays in the garden", 0.2838),
    ("A man is playing guitar", "A woman watches TV", -0.0327),
    ("The new movie is awesome", "The new movie is so great", 0.8939),
]
LONGEST = 512


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` with the encoder only."""
    folder = tmp_path_factory.mktemp("minilm")
    with corral_up(folder, "--model", f"{MODEL}={minilm_path()}") as corral:
        yield corral


def embed(
    client: openai.OpenAI, texts: list[str]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the vectors of texts as rows."""
    answer = client.embeddings.create(model=MODEL, input=texts)
    return np.array([each.embedding for each in answer.data])


def test_similarities_are_the_published_ones(client: openai.OpenAI) -> None:
    """Tokenizer, network, mean pooling and normalization, to three decimals."""
    first = embed(client, [pair[0] for pair in PUBLISHED])
    second = embed(client, [pair[1] for pair in PUBLISHED])

    assert first.shape == (6, 384)
    assert (first * second).sum(axis=1) == pytest.approx([p[2] for p in PUBLISHED], abs=1e-3)


def test_the_longest_input_matches_the_reference_implementation(client: openai.OpenAI) -> None:
    """512 tokens in one decode call, compared with numpy. A longer input is refused."""
    ids = [101, *(2000 + 7 * number for number in range(LONGEST - 2)), 102]
    answer = client.embeddings.create(model=MODEL, input=[ids])
    with pytest.raises(openai.BadRequestError) as refusal:
        client.embeddings.create(model=MODEL, input=[[*ids, 102]])
    expected = load_minilm().embedding(ids)

    assert np.abs(np.array(answer.data[0].embedding) - expected).max() < 2e-3
    assert answer.usage.prompt_tokens == LONGEST
    assert refusal.value.code == "context_length_exceeded"
    assert "512" in refusal.value.message
    assert "513" in refusal.value.message


def test_hundreds_of_texts_keep_their_order(client: openai.OpenAI) -> None:
    """Each vector equals that of a single input."""
    texts = [f"Note number {number} is about topic {number % 7}." for number in range(200)]
    together = embed(client, texts)
    single = embed(client, [texts[137]])

    assert together.shape == (200, 384)
    assert float((together[137] * single[0]).sum()) > 0.999


def test_a_server_with_encoders_only_refuses_chats(client: openai.OpenAI) -> None:
    """With the model's class in the error. Its models are listed."""
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])

    assert refusal.value.code == "model_cannot"
    assert "encoder" in refusal.value.message
    assert [model.id for model in client.models.list()] == [MODEL]
