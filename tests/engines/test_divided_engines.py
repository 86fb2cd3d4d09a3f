"""An engine over several machines, here processes: one of them is lost."""

from pathlib import Path
from typing import Any, Final

import openai
import pytest

from tests.engines.conftest import ENGINE
from tests.support.divided_engine import run_divided_engine
from tests.support.rpc import CAPITAL
from tests.support.services import RESTART_RETRIES, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
CHAT: Final[dict[str, Any]] = {
    "model": ENGINE,
    "messages": [{"role": "user", "content": CAPITAL}],
    "temperature": 0,
    "max_tokens": 200,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}


def test_a_lost_machine_ends_answers_until_all_are_back(tmp_path: Path) -> None:
    """Callers are told to come again, and get the same answer once they can."""
    with run_divided_engine(tmp_path) as engine:
        flags = ("--engine", f"{ENGINE}={engine.url}", "--tokenizer", "bundled")
        with corral_up(tmp_path, *flags) as corral:
            client = openai.OpenAI(base_url=corral.api, api_key="unused", max_retries=0)
            patient = client.with_options(max_retries=RESTART_RETRIES)
            holders, whole = engine.holders(), read(patient)
            stream = client.chat.completions.create(**CHAT)
            next(stream)
            engine.workers[0].kill()
            with pytest.raises(openai.APIError) as lost:
                list(stream)
            assert engine.server.program is not None
            died_of = engine.server.program.wait()
            with pytest.raises(openai.InternalServerError) as refused:
                read(client)
            starts_with_a_half = engine.starts()
            engine.workers[0].start()
            engine.server.start()
            found = read(patient)

    assert holders == {worker.address for worker in engine.workers}
    assert len(whole) > 200
    assert lost.value.code == "engine_restarting"
    assert died_of < 0
    assert refused.value.status_code == 503
    assert refused.value.response.headers["retry-after"]
    assert not starts_with_a_half
    assert found == whole


def read(client: openai.OpenAI) -> str:
    """The text of a long answer."""
    chunks = list(client.chat.completions.create(**CHAT))
    return "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
