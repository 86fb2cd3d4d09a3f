"""What Corral and agentic-api, which keeps responses too, lose by the same kills on one engine."""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

from tests.support.agentic import run_agentic
from tests.support.engine_servers import RunningEngine
from tests.support.sdk_batches import CONTROL, FRONTEND, GATEWAY, kill_process
from tests.support.services import RESTART_RETRIES, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

_log = logging.getLogger(__name__)
PROMPTS: Final = [f"Tell me a story about {number} cats." for number in range(9)]
KILLED_AT: Final = 8
"""The number of an event in the middle of an answer."""
PATIENCE_S: Final = 60.0
ENDED: Final = ("completed", "incomplete", "failed", "cancelled")


@contextmanager
def connect(url: str) -> Iterator[openai.OpenAI]:
    base_url = f"{url}/v1"
    with openai.OpenAI(
        base_url=base_url, api_key="unused", max_retries=RESTART_RETRIES
    ) as connected:
        yield connected


def begin(client: openai.OpenAI, prompt: str, kill: Callable[[], None], **options: Any) -> str:
    """Begin a stored response, and kill in the middle of it; return its id."""
    stream = client.responses.create(
        model="demo", input=prompt, max_output_tokens=200, stream=True, **options
    )
    response_id = ""
    with contextlib.suppress(openai.APIError, httpx.HTTPError):  # it ends with the process
        for number, event in enumerate(stream):
            if event.type == "response.created":
                response_id = event.response.id
            if number == KILLED_AT:
                kill()
    return response_id


def is_kept(client: openai.OpenAI, response_id: str) -> bool:
    """Whether a response ends with its answer."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            response = client.responses.retrieve(response_id)
        except openai.NotFoundError:
            return False
        if response.status in ENDED:
            return response.status in ("completed", "incomplete") and bool(response.output)
    return False


def test_corral_keeps_each_response(engine: RunningEngine, tmp_path: Path) -> None:
    """Whichever of its processes is killed."""
    flags = ("--engine", f"demo={engine.url}", "--tokenizer", engine.tokenizer)
    with corral_up(tmp_path, *flags) as corral, connect(corral.url) as client:
        kept = 0
        for prompt, words in zip(PROMPTS, 3 * (CONTROL, FRONTEND, GATEWAY), strict=True):
            kill = functools.partial(kill_process, corral, words)
            kept += is_kept(client, begin(client, prompt, kill, background=True))

    assert kept == len(PROMPTS)


def test_agentic_api_has_what_ended_before(engine: RunningEngine, tmp_path: Path) -> None:
    """How many of the others it has is logged."""
    with run_agentic(engine.url, tmp_path) as agentic, connect(agentic.url) as client:
        whole = client.responses.create(model="demo", input=PROMPTS[0], max_output_tokens=20)
        kept = sum(
            is_kept(client, begin(client, prompt, agentic.restart, store=True))
            for prompt in PROMPTS
        )
        _log.warning("agentic-api has %d of %d responses", kept, len(PROMPTS))

        assert is_kept(client, whole.id)
