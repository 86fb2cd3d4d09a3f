"""Engines that could be used with token ids, in text mode: answers are those that they give."""

from collections.abc import Iterator

import openai
import pytest

from tests.engines.conftest import ENGINE
from tests.engines.test_dialects import QUESTION
from tests.support.engine_servers import RunningEngine
from tests.support.services import Corral, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def in_text_mode(
    engine: RunningEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Corral]:
    folder = tmp_path_factory.mktemp(f"text-{engine.kind}")
    with corral_up(folder, "--engine", f"{ENGINE}={engine.url}") as corral:
        yield corral


def stream(url: str, model: str, **options: object) -> tuple[str, str | None, int]:
    """The text, the reason and the tokens of an answer."""
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=60) as client:
        chunks = list(
            client.chat.completions.create(  # type: ignore[call-overload]
                model=model,
                messages=QUESTION,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                **options,
            )
        )
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    reasons = [each.finish_reason for each in choices if each.finish_reason]
    text = "".join(each.delta.content or "" for each in choices)
    return text, reasons[-1], chunks[-1].usage.completion_tokens


@pytest.mark.parametrize("options", [{}, {"max_tokens": 3}, {"stop": ["France"]}], ids=str)
def test_an_answer_in_text_mode_is_the_answer_of_the_engine(
    engine: RunningEngine, in_text_mode: Corral, options: dict[str, object]
) -> None:
    expected = stream(f"{engine.url}/v1", "demo", **options)
    assert stream(in_text_mode.api, ENGINE, **options) == expected
    assert expected[0]
