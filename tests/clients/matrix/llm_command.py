"""The `llm` command with a model of its `extra-openai-models.yaml`."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clients.matrix.scenario import ANSWER, BASE_URL, MODEL, QUESTION, WEATHER, run

MODELS = [
    {
        "model_id": name,
        "model_name": name,
        "api_base": BASE_URL,
        "supports_tools": True,
        "supports_schema": True,
    }
    for name in (MODEL, "no-such-model")
]
TOOL = """
def get_weather(city: str) -> str:
    "The weather of a city."
    return "sunny in " + city
"""
OPTIONS = ("-o", "temperature", "0", "-o", "max_tokens", "100")
home = tempfile.TemporaryDirectory()
folder = Path(home.name)
folder.joinpath("extra-openai-models.yaml").write_text(json.dumps(MODELS))
environment = {**os.environ, "LLM_USER_PATH": home.name, "OPENAI_API_KEY": "none"}


def llm(*arguments: str, model: str = MODEL) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llm", "-m", model, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def answer() -> object:
    return ANSWER in llm(QUESTION, "--no-stream", *OPTIONS).stdout


def stream() -> object:
    return ANSWER in llm(QUESTION, *OPTIONS).stdout


def tools() -> object:
    called = llm("--functions", TOOL, "--td", WEATHER, *OPTIONS)
    continued = llm("-c", "Thank you!", *OPTIONS)
    problems = called.stderr + continued.stderr if continued.returncode else ""
    return ("get_weather" in called.stderr and continued.returncode == 0) or problems or called


def structured() -> object:
    form = json.loads(llm("--schema", "name str", "Name a city.", *OPTIONS).stdout)
    return isinstance(form["name"], str)


def error() -> object:
    failed = llm("?", model="no-such-model")
    return failed.returncode != 0 and "no-such-model" in failed.stderr


def cancel() -> object:
    command = [sys.executable, "-m", "llm", "-m", MODEL, QUESTION, "-o", "max_tokens", "500"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    process.kill()
    process.wait()
    return answer()


asyncio.run(run(answer, stream, tools, structured, error, cancel))
