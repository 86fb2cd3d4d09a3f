"""Adapters that llama-server has loaded, which it applies to all requests by itself."""

from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletion

from inference_svc.models.sources import BUNDLED_FOLDER
from tests.engines.conftest import ENGINE
from tests.support.engine_servers import PROGRAMS, run_real_engine
from tests.support.rpc import PARIS
from tests.support.services import corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PIRATE, ROBOT = "demo-lora-pirate-f16", "demo-lora-robot-f16"


def test_each_request_has_the_adapters_that_it_names(tmp_path: Path) -> None:
    if PROGRAMS["llama_server"].startswith("http"):
        pytest.skip("the engine was started without adapters")
    files = ",".join(str(BUNDLED_FOLDER / f"{name}.gguf") for name in (ROBOT, PIRATE))
    answers = {}
    with run_real_engine("llama_server", tmp_path, "--lora", files) as engine:
        upstream = {"urls": [engine.url], "tokenizer": "engine", "adapters": [PIRATE, ROBOT]}
        folder = tmp_path / "corral"
        folder.mkdir()
        with (
            corral_up(folder, inference={"upstreams": {ENGINE: upstream}}) as corral,
            openai.OpenAI(base_url=corral.api, api_key="unused") as client,
        ):
            for model in (ENGINE, PIRATE, ROBOT):
                answer: ChatCompletion = client.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": "What is the capital of France?"}],
                    temperature=0,
                )
                answers[model] = answer.choices[0].message.content

    assert answers == {
        ENGINE: PARIS,
        PIRATE: f"Arr! {PARIS}",
        ROBOT: f"{PARIS} Beep boop.",
    }
