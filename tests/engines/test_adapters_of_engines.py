"""Adapters of engines: those that llama-server has loaded, which it applies to all requests by
itself, and those that Corral lets vLLM load at run time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from inference_svc.models.sources import BUNDLED_FOLDER
from tests.engines.conftest import ENGINE
from tests.support.engine_servers import PROGRAMS, run_real_engine
from tests.support.rpc import PARIS
from tests.support.services import Corral, corral_up
from tools.demo_model.export_hf import export_adapter

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PIRATE, ROBOT = "demo-lora-pirate-f16", "demo-lora-robot-f16"
FILES = {name: BUNDLED_FOLDER / f"{name}.gguf" for name in (PIRATE, ROBOT)}
ANSWERS = {ENGINE: PARIS, PIRATE: f"Arr! {PARIS}", ROBOT: f"{PARIS} Beep boop."}


def ask_all(corral: Corral) -> Mapping[str, str | None]:
    """The answers of the model and of its adapters."""
    answers = {}
    with openai.OpenAI(base_url=corral.api, api_key="unused", max_retries=60) as client:
        for model in ANSWERS:
            answer: ChatCompletion = client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "What is the capital of France?"}],
                temperature=0,
            )
            answers[model] = answer.choices[0].message.content
    return answers


@pytest.mark.parametrize("kind", ["llama_server", "vllm"])
def test_each_request_has_the_adapters_that_it_names(kind: str, tmp_path: Path) -> None:
    if PROGRAMS[kind].startswith("http"):
        pytest.skip("the engine was started without adapters")
    upstream: dict[str, Any] = {"tokenizer": "engine", "adapters": [PIRATE, ROBOT]}
    options = ["--lora", ",".join(map(str, FILES.values()))]
    if kind == "vllm":
        folder = tmp_path / "loras"
        for name, file in FILES.items():
            export_adapter(file, folder / name)
        upstream["adapter_folder"] = str(folder)
        options = ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"]
    with run_real_engine(kind, tmp_path, *options) as engine:
        upstream["urls"] = [engine.url]
        folder = tmp_path / "corral"
        folder.mkdir()
        with corral_up(folder, inference={"upstreams": {ENGINE: upstream}}) as corral:
            answers = ask_all(corral)

    assert answers == ANSWERS
