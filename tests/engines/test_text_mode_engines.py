"""Engines that could be used with token ids, in text mode: answers are those that they give."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from inference_svc.models.sources import BUNDLED_PATH
from tests.engines.conftest import ENGINE
from tests.engines.test_dialects import QUESTION
from tests.support.engine_servers import RunningEngine, run_real_engine
from tests.support.pictures import circle_png, data_url
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
    """The text and the reasoning, the reason and the tokens of an answer."""
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
    parts = [(each.delta.content, getattr(each.delta, "reasoning_content", "")) for each in choices]
    text = "".join(each or "" for part in parts for each in part)
    return text, reasons[-1], chunks[-1].usage.completion_tokens


@pytest.mark.parametrize("options", [{}, {"max_tokens": 3}, {"stop": ["France"]}], ids=str)
def test_an_answer_in_text_mode_is_the_answer_of_the_engine(
    engine: RunningEngine, in_text_mode: Corral, options: dict[str, object]
) -> None:
    expected = stream(f"{engine.url}/v1", "demo", **options)
    assert stream(in_text_mode.api, ENGINE, **options) == expected
    assert expected[0]


@pytest.mark.parametrize("top", [None, 3])
def test_log_probabilities_in_text_mode_are_those_of_the_engine(
    engine: RunningEngine, in_text_mode: Corral, top: int | None
) -> None:
    options = {} if top is None else {"top_logprobs": top}
    expected = logprobs_of(f"{engine.url}/v1", "demo", **options)
    found = logprobs_of(in_text_mode.api, ENGINE, **options)
    if top is None:  # llama-server sends alternatives that nobody asked for
        expected = [(piece, value, []) for piece, value, _ in expected]
    assert len(expected) > 5
    for (piece, value, others), (told_piece, told, told_others) in zip(
        found, expected, strict=True
    ):
        assert (piece, others) == (told_piece, told_others)
        assert value == pytest.approx(told, abs=1e-3)


def logprobs_of(url: str, model: str, **options: int) -> list[tuple[str, float, list[str]]]:
    """Each token of the content of an answer, with its log probability and its alternatives."""
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=60) as client:
        chunks = list(
            client.chat.completions.create(  # type: ignore[call-overload]
                model=model,
                messages=QUESTION,
                temperature=0,
                stream=True,
                logprobs=True,
                **options,
            )
        )
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    told = [each.logprobs.content for each in choices if each.delta.content and each.logprobs]
    tokens = [token for tokens in told for token in tokens]
    return [(t.token, t.logprob, [each.token for each in t.top_logprobs]) for t in tokens]


def test_a_picture_in_text_mode_is_read_by_the_engine(tmp_path: Path) -> None:
    """As by the engine itself; one that reads none refuses it, and serves others."""
    projector = next(BUNDLED_PATH.parent.glob("*mmproj*"))
    picture = {"type": "image_url", "image_url": {"url": data_url(circle_png("red"))}}
    question = [{"type": "text", "text": "What is this?"}, picture]
    asked: Any = {"messages": [{"role": "user", "content": question}], "temperature": 0}
    with (
        run_real_engine("llama_server", tmp_path, "--mmproj", str(projector)) as reading,
        run_real_engine("llama_server", tmp_path) as blind,
        corral_up(
            tmp_path, "--engine", f"reads={reading.url}", "--engine", f"blind={blind.url}"
        ) as corral,
        openai.OpenAI(base_url=corral.api, api_key="unused", max_retries=60) as client,
        openai.OpenAI(base_url=f"{reading.url}/v1", api_key="unused") as engine,
    ):
        expected = engine.chat.completions.create(model="demo", **asked)
        found = client.chat.completions.create(model="reads", **asked)
        with pytest.raises(openai.BadRequestError, match="messages"):
            client.chat.completions.create(model="blind", **asked)
        text = stream(corral.api, "blind")[0]
    assert found.choices[0].message.content == expected.choices[0].message.content
    assert found.choices[0].message.content
    assert text
