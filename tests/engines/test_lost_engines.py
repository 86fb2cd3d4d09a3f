"""An engine is killed while it writes; another one at the next URL goes on."""

import json
import os
import signal
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from inference_svc.engine_client.continuation import continuation
from inference_svc.output_format import OutputFormat, OutputFormatKind
from tests.engines.conftest import ENGINE
from tests.support.engine_servers import PROGRAMS, VARIABLES, run_real_engine
from tests.support.rpc import CAPITAL
from tests.support.services import corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

LENGTH = 200


SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "is_capital": {"type": "boolean"},
        "size": {"type": "integer"},
        "names": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "is_capital", "size", "names"],
    "additionalProperties": False,
}


def _read(client: openai.OpenAI, kill_after: int = 0, kill: object = None, **options: Any) -> str:
    """The text of a long greedy answer; after that many chunks `kill` is called."""
    stream = client.chat.completions.create(
        model=ENGINE,
        messages=[{"role": "user", "content": CAPITAL}],
        temperature=0,
        max_tokens=LENGTH,
        stream=True,
        **(options or {"extra_body": {"ignore_eos": True}}),
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


@pytest.mark.parametrize("kind", VARIABLES)
@pytest.mark.parametrize("after", [1, 6, 25])
def test_an_answer_of_a_schema_goes_on_within_it(kind: str, after: int, tmp_path: Path) -> None:
    """At an engine that begins with the grammar of the rest."""
    if PROGRAMS[kind].startswith("http"):
        pytest.skip("an engine that runs for others is not killed")
    schema = {"name": "c", "schema": SCHEMA}
    options: Any = {"response_format": {"type": "json_schema", "json_schema": schema}}
    with run_real_engine(kind, tmp_path) as first, run_real_engine(kind, tmp_path) as second:
        victim = first.program
        assert victim is not None
        urls = f"{ENGINE}={first.url},{second.url}"
        with corral_up(tmp_path, "--engine", urls, "--tokenizer", first.tokenizer) as corral:
            client = openai.OpenAI(base_url=corral.api, api_key="unused", max_retries=60)
            whole = _read(client, **options)
            found = _read(client, after, lambda: os.killpg(victim.pid, signal.SIGKILL), **options)
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, json.dumps(SCHEMA), "format")

    assert len(found) > after
    assert continuation(form, whole) is not None
    assert continuation(form, found) is not None
    assert found[:after] == whole[:after]
