"""Upstreams whose engine says where its tokenizer is (`tokenizer = "engine"`), at stand-ins."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from inference_svc.chat.templates import ChatTemplates
from inference_svc.config import InferenceSettings
from inference_svc.model_pool.added_models import AddedModelsService
from inference_svc.model_pool.added_models_file import AddedModel, AddedUpstream
from inference_svc.model_pool.catalog import ModelEntry, with_tokens
from inference_svc.model_pool.discovery import find_models
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_pool.loader import ModelLoader
from inference_svc.model_pool.pool import ModelPool, read_memory
from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.errors import ModelLoadFailed, ModelLoading
from svc_kit.metrics import EngineMetrics
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from tests.support.engine_stand_in import EngineStandIn, run_engine
from tests.support.hf_folders import byte_level, write_folder
from tools.demo_model.export_hf import export_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")
BUNDLED = str(BUNDLED_PATH)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(SandboxSettings(min_children=1, max_children=1)) as sandbox:
        yield sandbox


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[EngineStandIn]:
    with run_engine(getattr(request, "param", "vllm")) as engine:
        engine.state.source = BUNDLED
        yield engine


@asynccontextmanager
async def run_pool(settings: InferenceSettings, sandbox: SandboxPool) -> AsyncIterator[ModelPool]:
    """A pool of the models of the settings, which calls do not wait for."""
    catalog = find_models(settings)
    loader = ModelLoader(
        settings,
        num_models=1,
        sandbox=sandbox,
        templates=ChatTemplates(sandbox),
        metrics=EngineMetrics(CollectorRegistry()),
    )
    pool = ModelPool(catalog, loader, await read_memory(settings.pool, catalog), wait_s=0)
    await pool.start()
    pool.open()
    try:
        yield pool
    finally:
        await pool.close()
        catalog.close()


def settings_of(folder: Path, *urls: str, **upstream: Any) -> InferenceSettings:
    options = {"urls": list(urls), "tokenizer": "engine", **upstream}
    return InferenceSettings(data_dir=folder, upstreams={"big": options})


async def ended(pool: ModelPool) -> ModelEntry:
    """The model, once it does not load any more."""
    entry = pool.catalog.find_model("big")
    async with asyncio.timeout(30):
        await pool.changes.wait_for(lambda: entry.resident.state is not ModelState.LOADING)
    return entry


@pytest.mark.parametrize("engine", ["llama_server", "vllm", "sglang"], indirect=True)
@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
async def test_the_tokenizer_is_where_the_engine_says(
    sandbox: SandboxPool, tmp_path: Path, engine: EngineStandIn, is_folder: bool
) -> None:
    if is_folder:
        export_tokenizer(BUNDLED_PATH, tmp_path / "hf")
        engine.state.source = str(tmp_path / "hf")
    async with run_pool(settings_of(tmp_path, engine.url), sandbox) as pool:
        entry = await ended(pool)
        assert entry.resident.problem == ""
        async with pool.use(entry) as loaded:
            size = loaded.processor.vocabulary.size
            template = loaded.processor.template.origin

    assert (entry.tokenizer, entry.file.path) == (engine.state.source, Path(engine.state.source))
    assert (size, template) == (2048, "gguf")


async def test_the_model_loads_until_the_engine_is_there(
    sandbox: SandboxPool, tmp_path: Path, engine: EngineStandIn
) -> None:
    """Also for what needs only the tokenizer."""
    engine.stop()
    async with run_pool(settings_of(tmp_path, engine.url), sandbox) as pool:
        entry = pool.catalog.find_model("big")
        with pytest.raises(ModelLoading):
            await pool.processor(entry)
        state = entry.state
        engine.start()
        await ended(pool)
        processor = with_tokens(await pool.processor(entry))
        tokens = processor.vocabulary.tokenize("Hi", add_special=False, parse_special=False)

    assert (state, len(tokens) > 0) == (ModelState.LOADING, True)


PATHS = {
    "a path of another machine": "/no/such/model.gguf",
    "a relative path": "models/qwen.gguf",
    "a tag": "qwen3:8b",
    "a device": "/dev/zero",
    "nothing": "",
    "too long a name": "/" + "x" * 5000,
    "a zero byte": "/a\0b",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
async def test_what_is_not_here_is_told_until_an_operator_tries_again(
    sandbox: SandboxPool, tmp_path: Path, engine: EngineStandIn, path: str
) -> None:
    engine.state.source = path
    async with run_pool(settings_of(tmp_path, engine.url), sandbox) as pool:
        failed = await ended(pool)
        state, problem = failed.state, failed.resident.problem
        with pytest.raises(ModelLoadFailed, match="operators see why"):
            await pool.processor(failed)
        engine.state.source = BUNDLED
        await pool.load(failed, wait=True)
        states = [state, failed.state]

    assert states == [ModelState.FAILED, ModelState.READY]
    assert f"{engine.url}: it says that its tokenizer is {path[:300]!r}"[:300] in problem
    assert "set tokenizer to a GGUF file" in problem


async def test_another_tokenizer_than_the_engines_is_refused_with_both_ids(
    sandbox: SandboxPool, tmp_path: Path, engine: EngineStandIn
) -> None:
    """Such as that of a model's folder, where the engine was started with another one."""
    write_folder(tmp_path, byte_level())
    engine.state.source = str(tmp_path)
    async with run_pool(settings_of(tmp_path, engine.url), sandbox) as pool:
        problem = (await ended(pool)).resident.problem

    assert "its vocabulary is another one: token 0 of 'Hello, world!" in problem


async def test_a_url_that_names_no_tokenizer_does_not_fail_the_others(
    sandbox: SandboxPool, tmp_path: Path, engine: EngineStandIn
) -> None:
    with run_engine("vllm") as other:
        other.state.source = "/not/here"
        urls = (other.url, engine.url)
        async with run_pool(settings_of(tmp_path, *urls), sandbox) as pool:
            entry = await ended(pool)

            assert entry.state is ModelState.READY


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_the_tokenizer_of_an_added_model_is_in_an_allowed_folder(
    sandbox: SandboxPool, tmp_path: Path, engine: EngineStandIn, is_allowed: bool
) -> None:
    """What operators may name themselves, the engine may name."""
    folder = tmp_path / "models" if is_allowed else tmp_path / "secret"
    folder.mkdir()
    engine.state.source = str(shutil.copy(BUNDLED_PATH, folder))
    host = engine.url.removeprefix("http://")
    settings = InferenceSettings(data_dir=tmp_path, models=["bundled"], upstream_hosts=[host])

    async def load_adapter(model: ModelEntry, path: Path) -> None:
        raise AssertionError(f"{model.name} has no adapter {path}")

    async with run_pool(settings, sandbox) as pool:
        added = AddedModelsService(settings, pool, load_adapter)
        await added.start()
        upstream = AddedUpstream(urls=(engine.url,))
        await added.add(AddedModel(name="big", source="engine", upstream=upstream), ())
        await pool.changes.wait_for(lambda: pool.catalog.has_model("big"))
        await pool.load(pool.catalog.find_model("big"), wait=False)
        entry = await ended(pool)
        await added.close()

    assert entry.source == "engine"
    assert (entry.tokenizer == engine.state.source) is is_allowed
    assert ("no such file in the folders" in entry.resident.problem) is not is_allowed
