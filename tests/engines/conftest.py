"""Real engines, and a Corral whose models they serve. Run by `make test-engines`."""

from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest

from tests.support.engine_servers import VARIABLES, RunningEngine, run_real_engine
from tests.support.services import Corral, corral_up

LOCAL = "local"
"""The bundled model by Corral's own engine."""
ENGINE = "engine"
"""The same model at the engine."""


@dataclass(frozen=True)
class Served:
    """An engine and the Corral in front of it."""

    engine: RunningEngine
    corral: Corral
    token: str
    """Of its operator."""


@pytest.fixture(scope="session", params=VARIABLES)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    """Each engine that is installed, for tests that leave it running."""
    with run_real_engine(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="session")
def served(engine: RunningEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`corral up --engine` with that engine, which tells its tokenizer if it was started here, and
    with the local model beside it."""
    tokenizer = "engine" if engine.program is not None else engine.tokenizer
    flags = ("--engine", f"{ENGINE}={engine.url}", "--tokenizer", tokenizer)
    folder = tmp_path_factory.mktemp(f"corral-{engine.kind}")
    with corral_up(folder, *flags, "--model", f"{LOCAL}=bundled") as corral:
        yield Served(engine, corral, (folder / "data" / "service-token").read_text().strip())


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    """The SDK, which retries while the engine is probed."""
    with openai.OpenAI(base_url=served.corral.api, api_key="unused", max_retries=60) as connected:
        yield connected
