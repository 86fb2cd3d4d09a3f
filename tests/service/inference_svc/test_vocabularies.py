"""Long texts are tokenized in a real child process."""

from inference_svc.chat.tokenization import THREAD_BYTES, PromptTokenizer, TextToTokenize
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings


async def test_a_child_process_returns_the_same_tokens() -> None:
    """In both calls, within the limits of a child."""
    text = "The quick brown 🦊 <|im_end|> " * 5000
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    async with SandboxPool(SandboxSettings(min_children=1, max_children=1)) as pool:
        tokenizer = PromptTokenizer(vocabulary, pool, BUNDLED_PATH, limit_bytes=10**6)
        request = TextToTokenize(text, parse_special=True)
        results = [await tokenizer.tokenize(request) for _ in range(2)]
    expected = vocabulary.tokenize(text, add_special=False, parse_special=True)
    vocabulary.close()

    assert len(text) > THREAD_BYTES
    assert results == [expected, expected]
