"""Added models before and while the service starts, over a pool with fake engines."""

import asyncio
import gc
import json
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from inference_svc.config import InferenceSettings
from inference_svc.model_pool.added_models import AddedModelsService
from inference_svc.model_pool.added_models_file import (
    AddedModel,
    AddedModels,
    AddedUpstream,
    read_added_models,
    write_added_models,
    write_file_list,
)
from inference_svc.model_pool.catalog import ModelEntry
from inference_svc.models.metadata import ModelClass
from inference_svc.models.sources import DownloadFile
from inference_svc.upstream_settings import UpstreamSettings
from svc_kit.errors import (
    InvalidField,
    MissingField,
    ModelExists,
    ModelLoadFailed,
    ModelLoading,
    ModelNotFound,
)
from tests.support.gguf_files import write_model
from tests.support.pooled import PoolHarness, settle

STORED = Path(__file__).resolve().parents[3] / "golden" / "added_models.json"
UNUSED = "0123456789abcdef" * 2
ALIAS = "hf.co/o/r:Q4_K_M"


async def _load_adapter(model: ModelEntry, path: Path) -> None:
    raise AssertionError(f"{model.name} has no adapter {path}")


@pytest.fixture
def harness() -> PoolHarness:
    return PoolHarness("a")


@pytest.fixture
def added(tmp_path: Path, harness: PoolHarness) -> AddedModelsService:
    """Two models that were added earlier: "m" is on a host that is not allowed any more, and the
    file of "own" is missing. In the folder of downloads is one that no model uses."""
    stored = STORED.read_text().replace("hf:o/r/m.gguf@c0ffee", "https://other.test/m.gguf")
    (tmp_path / "added_models.json").write_text(stored)
    unused = tmp_path / "models" / "added" / UNUSED
    write_file_list(unused, [DownloadFile(source="hf:o/r/x.gguf@c0ffee", name="x.gguf")])
    for name in ("x.gguf", "x.gguf.part", "x.gguf.etag", "files.json.0123abcd.part"):
        (unused / name).touch()

    return AddedModelsService(InferenceSettings(data_dir=tmp_path), harness.pool, _load_adapter)


@pytest.mark.parametrize("name", ["m", "own", ALIAS])
async def test_added_models_are_known_before_the_service_has_started(
    added: AddedModelsService, harness: PoolHarness, name: str
) -> None:
    """A client waits instead of hearing that there is none, and the name stays taken."""
    with pytest.raises(ModelLoading):
        harness[name]
    with pytest.raises(ModelExists):
        harness.catalog.check_free(name)

    assert added.find(name).name in ("m", "own")


async def test_models_that_cannot_be_used_any_more_are_failed_until_they_are_removed(
    added: AddedModelsService, harness: PoolHarness, tmp_path: Path
) -> None:
    """With their aliases, while the service has started. Folders that no model uses are deleted."""
    await added.start()
    await harness.pool.changes.wait_for(
        lambda: all(each.problem for each in harness.catalog.pending.values())
    )
    for name in ("m", "own", ALIAS):
        with pytest.raises(ModelLoadFailed):
            harness[name]
    for name in (ALIAS, "m", "own"):
        await added.remove(name, force=False)
        with pytest.raises(ModelNotFound):
            harness[name]
    await added.close()

    assert not (tmp_path / "models" / "added" / UNUSED).exists()


async def test_names_are_given_once(
    added: AddedModelsService, harness: PoolHarness, tmp_path: Path
) -> None:
    """An alias that is repeated, or the name itself, is no other name; removing frees each."""
    source = str(write_model(tmp_path / "models" / "tiny.gguf"))
    for aliases in (["tiny", "t", "t"], ["t", "u"]):
        await added.add(AddedModel(name="tiny", source=source), aliases)
    await harness.pool.changes.wait_for(lambda: harness.catalog.has_model("tiny"))
    aliases_of = {name: harness[name].aliases for name in ("tiny", "t", "u")}
    await added.remove("tiny", force=False)
    await added.close()

    assert aliases_of == dict.fromkeys(("tiny", "t", "u"), ("t", "u"))
    for name in ("tiny", "t", "u"):
        harness.catalog.check_free(name)


async def test_a_model_is_added_with_its_draft_model(
    added: AddedModelsService, harness: PoolHarness, tmp_path: Path
) -> None:
    """Also after a restart. Another one, and a file that may not be used, are refused."""
    folder, again = tmp_path / "models", PoolHarness("a")
    for name in ("tiny", "small", "other"):
        write_model(folder / f"{name}.gguf")
    write_model(tmp_path / "elsewhere.gguf")
    wanted = AddedModel(
        name="tiny", source=str(folder / "tiny.gguf"), draft_model=str(folder / "small.gguf")
    )
    await added.add(wanted, [])
    await added.add(wanted, [])
    await harness.pool.changes.wait_for(lambda: harness.catalog.has_model("tiny"))
    for path in (folder / "none.gguf", tmp_path / "elsewhere.gguf", Path("none")):
        with pytest.raises(InvalidField, match="draft_model"):
            await added.add(replace(wanted, name="b", draft_model=str(path)), [])
    with pytest.raises(ModelExists):
        await added.add(replace(wanted, draft_model=str(folder / "other.gguf")), [])
    settings = InferenceSettings(data_dir=tmp_path)
    restarted = AddedModelsService(settings, again.pool, _load_adapter)
    await restarted.start()
    await again.pool.changes.wait_for(lambda: again.catalog.has_model("tiny"))

    drafts = [each["tiny"].file.draft for each in (harness, again)]
    assert [draft and draft.path for draft in drafts] == [folder / "small.gguf"] * 2
    for service in (added, restarted):
        await service.close()


async def test_a_model_whose_draft_model_cannot_draft_is_failed(
    added: AddedModelsService, harness: PoolHarness, tmp_path: Path
) -> None:
    """The reason names the field."""
    model = write_model(tmp_path / "models" / "tiny.gguf")
    draft = write_model(tmp_path / "models" / "encoder.gguf", llama__attention__causal=False)
    await added.add(AddedModel(name="tiny", source=str(model), draft_model=str(draft)), [])
    await harness.pool.changes.wait_for(lambda: bool(harness.catalog.pending["tiny"].problem))

    assert "draft_model: encoder is of the class encoder" in harness.catalog.pending["tiny"].problem
    await added.close()


def test_a_model_without_a_draft_model_is_stored_as_before_there_were_any(tmp_path: Path) -> None:
    """An older release, which knows no such field, can read it."""
    plain, path = AddedModel(name="m", source="/m.gguf"), tmp_path / "added.json"
    drafted = replace(plain, name="d", draft_model="/d.gguf")
    models = {each.name: each for each in (plain, drafted)}
    write_added_models(path, AddedModels(models, {}))

    stored = json.loads(path.read_text())["models"]
    assert ["draft_model" in each for each in stored] == [False, True]
    assert read_added_models(path).models == models


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_change_whose_caller_leaves_is_made_everywhere_or_nowhere(
    added: AddedModelsService, harness: PoolHarness, tmp_path: Path, num_turns: int
) -> None:
    """A call is cancelled by its client, also while the file is written."""
    source = str(write_model(tmp_path / "models" / "tiny.gguf"))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    async def leave(change: Coroutine[Any, Any, object]) -> set[str]:
        """Returns the models of the file, and compares them with those of the catalog."""
        call = asyncio.create_task(change)
        for _ in range(num_turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait((call, *added.changes))
        await asyncio.to_thread(int)  # after what still runs there
        stored = read_added_models(tmp_path / "added_models.json")
        names = {name for name in harness.catalog.watched() if name != "a"}
        assert names == set(stored.models)
        return {*stored.models, *stored.aliases}

    known = await leave(added.add(AddedModel(name="tiny", source=source), ["t"]))
    await added.add(AddedModel(name="tiny", source=source), ["t"])
    assert known in ({"m", "own", ALIAS}, {"m", "own", ALIAS, "tiny", "t"})
    await leave(added.remove("tiny", force=False))
    with suppress(ModelNotFound):
        await added.remove("tiny", force=False)
    await leave(added.add_alias("m", "u"))
    await added.close()


URL = "http://127.0.0.1:9"


def upstream_service(tmp_path: Path, harness: PoolHarness) -> AddedModelsService:
    """One with a tokenizer, whose operators may add engines of this machine."""
    (tmp_path / "models").mkdir(exist_ok=True)
    write_model(tmp_path / "models" / "tiny.gguf")
    settings = InferenceSettings(data_dir=tmp_path, upstream_hosts=["127.0.0.1:9"])

    return AddedModelsService(settings, harness.pool, _load_adapter)


def upstream_model(tmp_path: Path, *urls: str, **fields: Any) -> AddedModel:
    fields = {"source": str(tmp_path / "models" / "tiny.gguf"), **fields}
    return AddedModel(name="big", upstream=AddedUpstream(urls=urls), **fields)


async def test_an_upstream_that_an_operator_added_is_there_after_a_restart(
    harness: PoolHarness, tmp_path: Path
) -> None:
    """It is connected at once."""
    added, again = upstream_service(tmp_path, harness), PoolHarness("a")
    await added.add(upstream_model(tmp_path, URL), ["b"])
    await harness.pool.changes.wait_for(lambda: harness.catalog.has_model("big"))
    await settle()
    assert harness.states()["big"] == "loading"
    restarted = upstream_service(tmp_path, again)
    await restarted.start()

    assert again["b"].upstream == UpstreamSettings(urls=[URL], tokenizer=again["big"].source)
    with pytest.raises(InvalidField, match="upstream"):
        await restarted.update("big", {"pinned": False})
    for service in (added, restarted):
        await service.close()


async def test_an_upstream_without_a_source_is_used_in_text_mode(
    harness: PoolHarness, tmp_path: Path
) -> None:
    """After a restart too. It needs a name, and has no digest."""
    added, again = upstream_service(tmp_path, harness), PoolHarness("a")
    upstream = AddedUpstream(urls=(URL,), model="gpt-x", task="embed")
    await added.add(AddedModel(name="big", source="", upstream=upstream), ["b"])
    await harness.pool.changes.wait_for(lambda: harness.catalog.has_model("big"))
    restarted = upstream_service(tmp_path, again)
    await restarted.start()

    expected = UpstreamSettings(urls=[URL], model="gpt-x", task="embed")
    assert [each["b"].upstream for each in (harness, again)] == [expected] * 2
    assert again["b"].file.model_class is ModelClass.ENCODER
    assert expected.is_text_mode
    for name, sha256 in (("", ""), ("c", "0" * 64)):
        wanted = AddedModel(name=name, source="", sha256=sha256, upstream=upstream)
        with pytest.raises(MissingField):
            await added.add(wanted, [])
    for service in (added, restarted):
        await service.close()


@pytest.mark.parametrize(
    ("urls", "fields", "problem"),
    [
        ((), {}, "upstream.urls"),
        (("http://127.0.0.1:10",), {}, "not allowed on this server; set inference.upstream_hosts"),
        (("http://u:p@127.0.0.1:9",), {}, "without a user name"),
        ((URL, URL + "/"), {}, "one is listed twice"),
        ((URL,), {"pinned": True}, "pinned.*not allowed with 'upstream'"),
        ((URL,), {"projector": "none"}, "projector.*not allowed with 'upstream'"),
        ((URL,), {"draft_model": "hf:o/r/d.gguf"}, "draft_model.*not allowed with 'upstream'"),
        ((URL,), {"idle_ttl_s": 3.0}, "idle_ttl.*not allowed with 'upstream'"),
        ((URL,), {"source": "engine", "sha256": "0" * 64}, "sha256.*the source 'engine'"),
    ],
)
async def test_an_upstream_that_cannot_be_added_is_refused_before_anything_is_stored(
    harness: PoolHarness, tmp_path: Path, urls: tuple[str, ...], fields: Any, problem: str
) -> None:
    added = upstream_service(tmp_path, harness)

    with pytest.raises((InvalidField, MissingField), match=problem):
        await added.add(upstream_model(tmp_path, *urls, **fields), [])
    assert not (tmp_path / "added_models.json").exists()
    await added.close()


def test_hosts_of_engines_are_whole_names() -> None:
    """Names that match a suffix could have any private address."""
    with pytest.raises(ValidationError, match="upstream_hosts"):
        InferenceSettings(upstream_hosts=["*.example.com"])


async def test_a_model_is_removed_at_any_moment(
    added: AddedModelsService, harness: PoolHarness, tmp_path: Path
) -> None:
    """While its file is examined too: it is never there afterwards, and its name is free. Its task
    ends without an error."""
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    source = str(write_model(tmp_path / "models" / "tiny.gguf"))
    for number in range(40):
        await added.add(AddedModel(name="tiny", source=source), ["t"])
        for _ in range(number % 20):
            await asyncio.sleep(0)
        await added.remove("tiny", force=False)
        for name in ("tiny", "t"):
            harness.catalog.check_free(name)
    await added.close()
    gc.collect()

    assert problems == []
