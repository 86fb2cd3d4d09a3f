"""Servers that tests share. Tests that stop a server start their own."""

import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.plain_http import plain_client
from tests.support.rpc import Rpc, connect
from tests.support.services import MODEL, RESTART_RETRIES, Corral, corral_up

ODD_NAME = "acme:demo-1.0"
"""A second name of the demo model, with characters that are special in URLs."""
SHORT_CONTEXT = 2048
"""That of the second name, whose longest prompts take a second."""
PIRATE, ROBOT = "demo-lora-pirate", "demo-lora-robot"
PIRATE_FILE, ROBOT_FILE = f"{PIRATE}-f16.gguf", f"{ROBOT}-f16.gguf"
CONTEXT_TOKENS = 16_384
"""Answers of tests that wait for no end take some 20 s to reach it."""
PATIENCE_S = 1.5
UNREAD_LIMIT_S = 8.0


@dataclass(frozen=True)
class KillableCorral(Corral):
    """A Corral whose processes tests may kill; `model` is the path of its model file."""

    model: Path


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` with two models, for tests that do not change its state. One reads text only."""
    flags = ("--model", "bundled", "--model", f"{ODD_NAME}=bundled")
    settings = {
        "engine.slots": 4,
        "engine.context_tokens": CONTEXT_TOKENS,
        "per_model": {ODD_NAME: {"projector": "none", "context_tokens": SHORT_CONTEXT}},
    }
    with corral_up(tmp_path_factory.mktemp("up"), *flags, inference=settings) as corral:
        yield corral


@pytest.fixture(scope="session")
def server(up: Corral) -> Corral:
    """The server of `rpc`, `http` and the SDK's clients; a module may have its own."""
    return up


@pytest.fixture
async def rpc(server: Corral) -> AsyncIterator[Rpc]:
    """A plain gRPC client."""
    async with connect(server.target) as connected:
        yield connected


@pytest.fixture
def client(server: Corral) -> Iterator[openai.OpenAI]:
    """The synchronous client of the SDK without retries. A keyless server accepts any key."""
    with openai.OpenAI(base_url=server.api, api_key="unused", max_retries=0) as connected:
        yield connected


@pytest.fixture
async def aclient(server: Corral) -> AsyncIterator[openai.AsyncOpenAI]:
    """The asynchronous client of the SDK without retries."""
    async with server.sdk() as connected:
        yield connected


@pytest.fixture
def retrying_client(server: Corral) -> Iterator[openai.OpenAI]:
    """The SDK with enough retries for a server whose processes are killed."""
    with openai.OpenAI(
        base_url=server.api, api_key="unused", max_retries=RESTART_RETRIES
    ) as connected:
        yield connected


@pytest.fixture
async def http(server: Corral) -> AsyncIterator[httpx.AsyncClient]:
    async with plain_client(server) as client:
        yield client


@pytest.fixture(scope="session")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableCorral]:
    """`corral up` with short timeouts. Tests may kill its processes, but must wait for restarts."""
    folder = tmp_path_factory.mktemp("killable")
    model = Path(shutil.copy(BUNDLED_PATH, folder / "own.gguf"))
    inference = {
        "engine.slots": 3,
        "engine.prefill_chunk_tokens": 16,
        "engine.unread_events": 32,
        "engine.reader_patience_s": PATIENCE_S,
    }
    gateway = {"unread_limit_s": UNREAD_LIMIT_S}
    with corral_up(
        folder, "--model", f"{MODEL}={model}", inference=inference, gateway=gateway
    ) as corral:
        yield KillableCorral(corral.program, corral.url, corral.target, corral.control, model)


@pytest.fixture
async def killable_rpc(killable: KillableCorral) -> AsyncIterator[Rpc]:
    """A plain gRPC client of the server that tests may kill."""
    async with connect(killable.target) as connected:
        yield connected


@pytest.fixture
async def sdk(killable: KillableCorral) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK without retries, for the server that tests may kill."""
    async with killable.sdk() as connected:
        yield connected
