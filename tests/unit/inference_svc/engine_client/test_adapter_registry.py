"""The generations of adapters, and what an engine's death does to them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_svc.engine.events import AdapterFailed, AdapterLoaded
from inference_svc.engine.request import Command, LoadAdapter, UnloadAdapter
from inference_svc.engine_client.adapter_registry import (
    Adapter,
    AdapterRegistry,
    AdapterState,
    LoadMarks,
)
from model_files.adapter_file import AdapterDescription
from svc_kit.errors import (
    AdapterCrashedEngine,
    AdapterInvalid,
    AdapterNotFound,
    Draining,
    EngineRestarting,
)
from svc_kit.local_files import PrivateFile

RESTARTING = EngineRestarting(retry_after=1.0)


class Scene:
    """A registry, the commands it sent, and how many requests use each generation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: list[Command] = []
        self.users: dict[Adapter, int] = {}
        self.made: list[Adapter] = []
        self.registry = AdapterRegistry(self.sent.append, lambda each: self.users.get(each, 0))

    def an_adapter(self, name: str = "voice", content: str = "one") -> Adapter:
        """A generation with a file of its own."""
        source = self.folder / "source"
        source.write_text(content)
        description = AdapterDescription(rank=8, size_bytes=100, title="")
        file = PrivateFile.copy_of(source, self.folder)
        self.made.append(Adapter(name, "demo", file, description, 1.0))
        return self.made[-1]

    async def loaded(self, name: str = "voice", content: str = "one") -> Adapter:
        """A generation that the engine has."""
        adapter = self.an_adapter(name, content)
        answer = self.registry.load(adapter)
        self.answer(adapter)
        return await answer

    def answer(self, adapter: Adapter) -> None:
        """The engine has it."""
        self.registry.deliver(AdapterLoaded(*adapter.content))

    def unloaded(self) -> list[str]:
        """The digests that the engine was told to free."""
        return [each.digest for each in self.sent if isinstance(each, UnloadAdapter)]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Nothing loaded."""
    made = Scene(tmp_path)
    yield made
    for adapter in made.made:
        adapter.file.close()


def states(scene: Scene) -> list[tuple[int, AdapterState]]:
    """Generation and state of all that is in memory."""
    return [(each.generation, each.state) for each in scene.registry.all()]


async def test_a_name_is_given_when_the_engine_has_the_file(scene: Scene) -> None:
    """Not before: a request would wait for it."""
    adapter = scene.an_adapter()
    answer = scene.registry.load(adapter)
    with pytest.raises(AdapterNotFound):
        scene.registry.get("voice")
    scene.answer(adapter)

    assert await answer is scene.registry.get("voice") is adapter
    assert scene.sent == [LoadAdapter("demo", adapter.digest, adapter.file.path)]
    assert states(scene) == [(1, AdapterState.READY)]
    assert adapter.ready_at is not None


async def test_a_new_generation_takes_the_name_and_the_old_one_drains(scene: Scene) -> None:
    """It is freed with its last request, not before."""
    old = await scene.loaded(content="one")
    scene.users[old] = 1
    new = await scene.loaded(content="two")

    assert scene.registry.get("voice") is new
    assert states(scene) == [(1, AdapterState.DRAINING), (2, AdapterState.READY)]
    assert scene.registry.num_bytes == 200
    assert scene.unloaded() == []

    scene.users[old] = 0
    scene.registry.sweep()

    assert states(scene) == [(2, AdapterState.READY)]
    assert scene.unloaded() == [old.digest]


async def test_what_another_name_uses_stays_in_the_engine(scene: Scene) -> None:
    """One file under two names is one adapter there."""
    first = await scene.loaded("first")
    second = await scene.loaded("second")

    assert first.digest == second.digest
    assert scene.registry.num_bytes == 100
    scene.registry.unload("first")
    assert scene.unloaded() == []
    scene.registry.unload("second")
    assert scene.unloaded() == [second.digest]
    with pytest.raises(AdapterNotFound):
        scene.registry.unload("second")


async def test_the_same_file_again_is_a_generation_too(scene: Scene) -> None:
    """It may come with another default scale; the engine keeps what it has."""
    await scene.loaded()
    await scene.loaded()

    assert states(scene) == [(2, AdapterState.READY)]
    assert scene.unloaded() == []


async def test_a_load_that_the_engine_refuses_changes_nothing(scene: Scene) -> None:
    """The old generation keeps the name."""
    old = await scene.loaded()
    new = scene.an_adapter(content="two")
    answer = scene.registry.load(new)
    scene.registry.deliver(AdapterFailed(*new.content, "no memory"))
    with pytest.raises(AdapterInvalid, match="no memory"):
        await answer

    assert scene.registry.all() == [old]


async def test_nobody_has_to_wait_for_a_load(scene: Scene) -> None:
    """A caller that has gone away leaves a loaded adapter."""
    adapter = scene.an_adapter()
    scene.registry.load(adapter).cancel()
    scene.answer(adapter)

    assert scene.registry.get("voice") is adapter


# --- an engine's death ----------------------------------------------------------------------------


async def test_a_new_engine_gets_what_had_a_name(scene: Scene) -> None:
    """From the same files; requests may follow at once. What drained is gone with its requests."""
    old = await scene.loaded(content="one")
    scene.users[old] = 1
    new = await scene.loaded(content="two")
    other = await scene.loaded("other", "three")
    scene.users.clear()
    scene.registry.on_engine_death(RESTARTING)
    scene.sent.clear()
    scene.registry.on_engine_ready()

    assert scene.sent == [LoadAdapter(*each.content, each.file.path) for each in (new, other)]
    assert scene.registry.get("voice") is new
    assert new.state is AdapterState.LOADING
    scene.answer(new)
    scene.answer(other)
    assert states(scene) == [(1, AdapterState.READY), (2, AdapterState.READY)]


async def test_what_an_engine_died_of_is_not_loaded_again(scene: Scene) -> None:
    """The first unanswered load is to blame; those behind it are repeated."""
    bad, good = await scene.loaded("bad", "one"), await scene.loaded("good", "two")
    scene.registry.on_engine_death(RESTARTING)
    scene.registry.on_engine_ready()
    scene.registry.on_engine_death(RESTARTING)
    scene.sent.clear()
    scene.registry.on_engine_ready()

    assert bad.state is AdapterState.FAILED
    assert scene.sent == [LoadAdapter(*good.content, good.file.path)]
    with pytest.raises(AdapterCrashedEngine):
        scene.registry.get("bad")
    assert (scene.registry.num_loaded, scene.registry.num_bytes) == (1, 100)
    scene.registry.unload("bad")
    assert scene.registry.find("bad") is None


async def test_first_loads_end_with_the_engine(scene: Scene) -> None:
    """The one under way is to blame, the next one may be tried again."""
    first = scene.registry.load(scene.an_adapter("first", "one"))
    second = scene.registry.load(scene.an_adapter("second", "two"))
    scene.registry.on_engine_death(RESTARTING)

    with pytest.raises(AdapterCrashedEngine):
        await first
    with pytest.raises(EngineRestarting):
        await second
    assert scene.registry.all() == []


async def test_an_adapter_that_is_unloaded_while_it_is_loaded_again_stays_away(
    scene: Scene,
) -> None:
    """The answer comes for nobody, and the engine is told to free it."""
    adapter = await scene.loaded()
    scene.registry.on_engine_death(RESTARTING)
    scene.registry.on_engine_ready()
    scene.registry.unload("voice")
    scene.answer(adapter)

    assert scene.registry.all() == []
    assert scene.unloaded() == [adapter.digest]


async def test_the_end_of_the_service_ends_loads(scene: Scene) -> None:
    """Whoever waits hears why."""
    answer = scene.registry.load(scene.an_adapter())
    scene.registry.close(Draining(retry_after=1.0))

    with pytest.raises(Draining):
        await answer


async def test_what_is_kept_without_an_engine_is_loaded_by_the_next(scene: Scene) -> None:
    """It has its name at once, and its model takes it along."""
    adapter = scene.registry.keep(scene.an_adapter())
    assert states(scene) == [(1, AdapterState.LOADING)]
    scene.registry.on_engine_ready()
    scene.answer(adapter)

    assert scene.sent == [LoadAdapter("demo", adapter.digest, adapter.file.path)]
    assert states(scene) == [(1, AdapterState.READY)]


async def test_an_engine_that_was_ended_leaves_what_has_a_name(scene: Scene) -> None:
    """Nobody is to blame; a first load that was under way fails, old generations are freed."""
    kept, old = await scene.loaded("kept"), await scene.loaded("new", "two")
    scene.users[old] = 1
    await scene.loaded("new", "three")
    under_way = scene.registry.load(scene.an_adapter("late", "four"))
    scene.users.clear()
    scene.registry.on_engine_gone(RESTARTING)
    with pytest.raises(EngineRestarting):
        await under_way
    scene.registry.attach(scene.sent.append, lambda _: 0)
    scene.sent.clear()
    scene.registry.on_engine_ready()

    assert [each.name for each in scene.registry.all()] == ["kept", "new"]
    assert {state for _, state in states(scene)} == {AdapterState.LOADING}
    assert scene.sent[0] == LoadAdapter("demo", kept.digest, kept.file.path)
    assert len(scene.sent) == 2


# --- projects and marks ---------------------------------------------------------------------------


async def test_a_name_is_a_projects_own(scene: Scene) -> None:
    """The same one is an adapter of its own in each project, and for the operator."""
    shared, mine = await scene.loaded(content="one"), scene.an_adapter(content="two")
    mine.project = "mine"
    answer = scene.registry.load(mine)
    scene.answer(mine)

    assert await answer is scene.registry.get("voice", "mine")
    assert scene.registry.get("voice") is shared
    assert scene.registry.find("voice", "other") is None
    assert (shared.generation, mine.generation) == (1, 1)
    assert scene.registry.unload("voice", "mine") is mine
    assert scene.registry.get("voice") is shared


class Marks(LoadMarks):
    """The calls, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def begin(self, digest: str) -> None:
        """It is being loaded."""
        self.said.append(("begin", digest))

    def end(self, digest: str) -> None:
        """It is no more."""
        self.said.append(("end", digest))

    def blame(self, digest: str) -> None:
        """The engine died of it."""
        self.said.append(("blame", digest))


async def test_only_what_the_engine_is_at_is_marked(scene: Scene) -> None:
    """One after the other, also when an engine is started again; one that dies blames one."""
    marks = scene.registry.marks = Marks()
    one, two = await scene.loaded("one", "1"), await scene.loaded("two", "2")
    scene.registry.on_engine_death(RESTARTING)
    scene.registry.on_engine_ready()
    scene.answer(one)
    scene.registry.on_engine_death(RESTARTING)

    each = [("begin", one.digest), ("end", one.digest), ("begin", two.digest)]
    assert marks.said == [*each, ("end", two.digest), *each, ("blame", two.digest)]


async def test_an_engine_that_is_ended_on_purpose_blames_nobody(scene: Scene) -> None:
    """What it was loading is no longer marked."""
    marks = scene.registry.marks = Marks()
    loading = scene.registry.load(adapter := scene.an_adapter())
    scene.registry.on_engine_gone(Draining())
    with pytest.raises(Draining):
        await loading

    assert marks.said == [("begin", adapter.digest), ("end", adapter.digest)]
