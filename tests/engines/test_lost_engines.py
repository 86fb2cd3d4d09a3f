"""An engine is killed while it writes; another one at the next URL goes on."""

import os
import signal
from pathlib import Path

import openai
import pytest

from tests.engines.conftest import ENGINE
from tests.support.engine_servers import PROGRAMS, VARIABLES, run_real_engine
from tests.support.rpc import CAPITAL
from tests.support.services import corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

LENGTH = 200


def _read(client: openai.OpenAI, kill_after: int = 0, kill: object = None) -> str:
    """The text of a long greedy answer; after that many chunks `kill` is called."""
    stream = client.chat.completions.create(
        model=ENGINE,
        messages=[{"role": "user", "content": CAPITAL}],
        temperature=0,
        max_tokens=LENGTH,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    texts = []
    for number, chunk in enumerate(stream):
        if callable(kill) and number == kill_after:
            kill()
        if chunk.choices:
            texts.append(chunk.choices[0].delta.content or "")
    return "".join(texts)


@pytest.mark.parametrize("kind", VARIABLES)
def test_the_text_is_the_undisturbed_one(kind: str, tmp_path: Path) -> None:
    """One of two engines is killed with all its processes."""
    if PROGRAMS[kind].startswith("http"):
        pytest.skip("an engine that runs for others is not killed")
    with run_real_engine(kind, tmp_path) as first, run_real_engine(kind, tmp_path) as second:
        victim = first.program
        assert victim is not None
        urls = f"{ENGINE}={first.url},{second.url}"
        with corral_up(tmp_path, "--engine", urls, "--tokenizer", first.tokenizer) as corral:
            client = openai.OpenAI(base_url=corral.api, api_key="unused", max_retries=60)
            expected = _read(client)
            found = _read(client, 3, lambda: os.killpg(victim.pid, signal.SIGKILL))
            after = _read(client)

    assert len(expected) > LENGTH
    assert found == expected
    assert after == expected
