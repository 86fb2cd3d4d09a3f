"""Pictures and sounds beside llama-server: the same greedy answers with the same files.

Needs the programs that `bench/peers.sh` builds: CORRAL_PEERS names their folder.
"""

import base64
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from bench.servers import free_ports
from tests.support.media_models import AUDIO_KINDS, KINDS, SAMPLE_RATE, MediaPair, write_pair
from tests.support.pictures import data_url, noise_png
from tests.support.processes import Program
from tests.support.services import corral_up
from tests.support.sounds import encode

TIE = 0.01  # in nats
MIN_COMPARED = 20  # characters of an answer, on average
PEERS = os.environ.get("CORRAL_PEERS", "")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not PEERS, reason="llama-server is not built (CORRAL_PEERS)"),
]
SIZES = [(112, 112), (160, 90), (61, 133)]


def _picture(width: int, height: int) -> dict[str, Any]:
    url = data_url(noise_png(width, (width, height)))
    return {"type": "image_url", "image_url": {"url": url}}


def _chirp(seconds: float) -> bytes:
    times = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    samples = np.sin(times * 2 * np.pi * 440 * (1 + times)) * 0.6
    return encode(samples.astype(np.float32), SAMPLE_RATE, "WAV")


def _sound(seconds: float) -> dict[str, Any]:
    data = base64.b64encode(_chirp(seconds)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def _conversations(kind: str) -> list[list[dict[str, Any]]]:
    def user(*parts: dict[str, Any]) -> dict[str, Any]:
        return {"role": "user", "content": list(parts)}

    question = {"type": "text", "text": "What is this?"}
    if kind in AUDIO_KINDS:
        return [[user(_sound(0.5), question)], [user(question, _sound(2.0))]]
    pictures = [_picture(*size) for size in SIZES]
    return [
        *([user(picture, question)] for picture in pictures),
        [user(question, pictures[0], {"type": "text", "text": "or"}, pictures[1])],
        [
            user(pictures[2], question),
            {"role": "assistant", "content": "A star."},
            user(question, pictures[0]),
        ],
    ]


@contextmanager
def _llama_server(pair: MediaPair, folder: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    command: list[str | Path] = [
        *(Path(PEERS) / "llama-server", "--model", pair.model, "--mmproj", pair.projector),
        *("--host", "127.0.0.1", "--port", str(port), "--jinja", "--threads", "1"),
        *("--ctx-size", "4096", "--parallel", "1", "--no-cache-prompt"),
    ]
    with Program(command, environment={}, directory=folder) as program:
        program.wait_for_line(r"listening on http")
        yield f"http://127.0.0.1:{port}/v1"


def _answers(url: str, kind: str) -> list[Any]:
    """The tokens of each answer with the two best of each place, and the tokens of its prompt."""
    answers = []
    for messages in _conversations(kind):
        body = {
            "model": kind,
            "messages": messages,
            "temperature": 0,
            "max_tokens": 16,
            "ignore_eos": True,
            "chat_template_kwargs": {"enable_thinking": False},
            "logprobs": True,
            "top_logprobs": 2,
        }
        answer = httpx.post(f"{url}/chat/completions", json=body, timeout=60).json()
        assert "choices" in answer, answer
        tokens = answer["choices"][0]["logprobs"]["content"]
        answers.append((tokens, answer["usage"]["prompt_tokens"]))
    return answers


def _until_tie(tokens: Any) -> str:
    """The text up to the first token for which the two best are about equally probable, as calls of
    other sizes are rounded otherwise."""
    best = ([each["logprob"] for each in token["top_logprobs"][:2]] for token in tokens)
    ties = (i for i, (first, second) in enumerate(best) if first - second < TIE)
    return _text(tokens[: next(ties, len(tokens))])


def _text(tokens: Any) -> str:
    """With one mark for any number of bytes that are no text."""
    return re.sub("\ufffd+", "\ufffd", "".join(token["token"] for token in tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_llama_server(tmp_path: Path, kind: str) -> None:
    """For each kind of projector, with one picture or sound and with several."""
    pair = write_pair(kind, tmp_path)
    with _llama_server(pair, tmp_path) as url:
        expected = _answers(url, kind)
    per_model = {kind: {"projector": str(pair.projector), "context_tokens": 4096}}
    with corral_up(
        tmp_path, "--model", f"{kind}={pair.model}", inference={"per_model": per_model}
    ) as corral:
        answers = _answers(corral.api, kind)

    assert [tokens for _, tokens in answers] == [tokens for _, tokens in expected]
    certain = [_until_tie(theirs) for theirs, _ in expected]
    texts = [_text(own) for own, _ in answers]
    assert [text[: len(start)] for text, start in zip(texts, certain, strict=True)] == certain
    assert sum(map(len, certain)) > MIN_COMPARED * len(certain)
