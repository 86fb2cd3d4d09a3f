"""Tests of the adapter registry: generations, and reloading after an engine has ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_svc.engine.events import AdapterLoadDone
from inference_svc.engine.request import Command, LoadAdapter, UnloadAdapter
from inference_svc.engine_client.adapter_registry import (
    Adapter,
    AdapterRegistry,
    AdapterState,
    LoadMarker,
)
from model_files.adapter_facts import AdapterFacts
from svc_kit.errors import (
    AdapterCrashedEngine,
    AdapterInvalid,
    AdapterNotFound,
    Draining,
    EngineRestarting,
)
from svc_kit.local_files import PrivateFile

RESTARTING = EngineRestarting(retry_after=1.0)


class RegistryHarness:
    """A registry, the commands it sent, and the number of requests that use each generation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: list[Command] = []
        self.users: dict[Adapter, int] = {}
        self.created: list[Adapter] = []
        self.registry = AdapterRegistry(self.sent.append, lambda each: self.users.get(each, 0))

    def make_adapter(self, name: str = "voice", content: str = "one") -> Adapter:
        """Create a generation with a file of its own."""
        source = self.folder / "source"
        source.write_text(content)
        description = AdapterFacts(
            architecture="llama", base_model="", rank=8, size_bytes=100, title=""
        )
        file = PrivateFile.copy_of(source, self.folder)
        self.created.append(Adapter(name, "demo", file, description, 1.0))
        return self.created[-1]

    async def load(self, name: str = "voice", content: str = "one") -> Adapter:
        adapter = self.make_adapter(name, content)
        loaded = self.registry.load(adapter)
        self.answer(adapter)
        return await loaded

    def answer(self, adapter: Adapter) -> None:
        self.registry.deliver(AdapterLoadDone(adapter.digest))

    def restart(self) -> None:
        self.registry.on_engine_crash(RESTARTING)
        self.sent.clear()
        self.registry.on_engine_ready()

    def states(self) -> list[tuple[int, AdapterState]]:
        return [(each.generation, each.state) for each in self.registry.all()]

    def unloaded(self) -> list[str]:
        return [each.digest for each in self.sent if isinstance(each, UnloadAdapter)]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RegistryHarness]:
    """Without adapters."""
    harness = RegistryHarness(tmp_path)
    yield harness
    for adapter in harness.created:
        adapter.file.close()


async def test_an_adapter_is_published_once_the_engine_has_loaded_it(
    harness: RegistryHarness,
) -> None:
    """Earlier, requests would wait for it."""
    adapter = harness.make_adapter()
    answer = harness.registry.load(adapter)
    with pytest.raises(AdapterNotFound):
        harness.registry.get("voice")
    harness.answer(adapter)

    assert await answer is harness.registry.get("voice") is adapter
    assert harness.sent == [LoadAdapter(adapter.digest, adapter.file.path)]
    assert harness.states() == [(1, AdapterState.READY)]
    assert adapter.ready_at is not None


async def test_a_new_generation_replaces_the_old_one_which_drains(harness: RegistryHarness) -> None:
    """The old one is freed when its last request ends."""
    old = await harness.load(content="one")
    harness.users[old] = 1
    new = await harness.load(content="two")

    assert harness.registry.get("voice") is new
    assert harness.states() == [(1, AdapterState.DRAINING), (2, AdapterState.READY)]
    assert harness.registry.num_bytes == 200
    assert harness.unloaded() == []

    harness.users[old] = 0
    harness.registry.free_unused()

    assert harness.states() == [(2, AdapterState.READY)]
    assert harness.unloaded() == [old.digest]


def test_adapters_of_an_upstream_are_there_while_its_engine_lists_them(
    harness: RegistryHarness,
) -> None:
    """No command loads them, also not into the next engine."""
    for name in ("a", "b"):
        harness.registry.add(Adapter.of_upstream(name, "demo"))
    harness.registry.on_engine_ready()
    harness.registry.on_listed(frozenset({"a"}))

    assert harness.states() == [(1, AdapterState.READY), (1, AdapterState.FAILED)]
    assert harness.registry.get("a").engine_key == "a"
    with pytest.raises(AdapterNotFound):
        harness.registry.get("b")
    harness.restart()
    harness.registry.on_listed(frozenset({"b"}))
    assert harness.states() == [(1, AdapterState.FAILED), (1, AdapterState.READY)]
    assert harness.sent == []


async def test_a_file_with_two_names_is_loaded_once(harness: RegistryHarness) -> None:
    """It stays in the engine until both names are unloaded."""
    first = await harness.load("first")
    second = await harness.load("second")

    assert first.digest == second.digest
    assert harness.registry.num_bytes == 100
    harness.registry.unload("first")
    assert harness.unloaded() == []
    harness.registry.unload("second")
    assert harness.unloaded() == [second.digest]
    with pytest.raises(AdapterNotFound):
        harness.registry.unload("second")


async def test_loading_the_same_file_again_is_a_new_generation(harness: RegistryHarness) -> None:
    """Its default scale may differ; the engine does not reload the file."""
    await harness.load()
    await harness.load()

    assert harness.states() == [(2, AdapterState.READY)]
    assert harness.unloaded() == []


async def test_a_failed_load_changes_nothing(harness: RegistryHarness) -> None:
    """The old generation stays current."""
    old = await harness.load()
    new = harness.make_adapter(content="two")
    answer = harness.registry.load(new)
    harness.registry.deliver(AdapterLoadDone(new.digest, "no memory"))
    with pytest.raises(AdapterInvalid, match="no memory"):
        await answer

    assert harness.registry.all() == [old]


async def test_a_load_completes_although_its_caller_was_cancelled(harness: RegistryHarness) -> None:
    """The adapter is published."""
    adapter = harness.make_adapter()
    harness.registry.load(adapter).cancel()
    harness.answer(adapter)

    assert harness.registry.get("voice") is adapter


# --- the end of an engine -------------------------------------------------------------------------


async def test_a_new_engine_reloads_the_current_generations(harness: RegistryHarness) -> None:
    """Requests may use them at once. Draining ones are freed."""
    old = await harness.load(content="one")
    harness.users[old] = 1
    new = await harness.load(content="two")
    other = await harness.load("other", "three")
    harness.users.clear()
    harness.restart()

    assert harness.sent == [LoadAdapter(each.digest, each.file.path) for each in (new, other)]
    assert harness.registry.get("voice") is new
    assert new.state is AdapterState.LOADING
    harness.answer(new)
    harness.answer(other)
    assert harness.states() == [(1, AdapterState.READY), (2, AdapterState.READY)]


async def test_an_adapter_that_crashed_the_engine_is_not_reloaded(harness: RegistryHarness) -> None:
    """The oldest pending load is blamed; later ones are repeated."""
    bad, good = await harness.load("bad", "one"), await harness.load("good", "two")
    harness.restart()
    harness.restart()

    assert bad.state is AdapterState.FAILED
    assert harness.sent == [LoadAdapter(good.digest, good.file.path)]
    with pytest.raises(AdapterCrashedEngine):
        harness.registry.get("bad")
    assert (harness.registry.num_loaded, harness.registry.num_bytes) == (1, 100)
    harness.registry.unload("bad")
    assert harness.registry.find("bad") is None


async def test_new_loads_fail_when_the_engine_crashes(harness: RegistryHarness) -> None:
    """The oldest is blamed; the others may be retried."""
    first = harness.registry.load(harness.make_adapter("first", "one"))
    second = harness.registry.load(harness.make_adapter("second", "two"))
    harness.registry.on_engine_crash(RESTARTING)

    with pytest.raises(AdapterCrashedEngine):
        await first
    with pytest.raises(EngineRestarting):
        await second
    assert harness.registry.all() == []


async def test_an_adapter_unloaded_during_its_reload_is_freed(harness: RegistryHarness) -> None:
    """The answer to the reload does not publish it."""
    adapter = await harness.load()
    harness.restart()
    harness.registry.unload("voice")
    harness.answer(adapter)

    assert harness.registry.all() == []
    assert harness.unloaded() == [adapter.digest]


async def test_closing_the_registry_fails_pending_loads(harness: RegistryHarness) -> None:
    answer = harness.registry.load(harness.make_adapter())
    harness.registry.close(Draining(retry_after=1.0))

    with pytest.raises(Draining):
        await answer


async def test_an_adapter_added_without_an_engine_is_loaded_by_the_next_engine(
    harness: RegistryHarness,
) -> None:
    """It is published at once."""
    adapter = harness.make_adapter()
    harness.registry.add(adapter)
    assert harness.states() == [(1, AdapterState.LOADING)]
    harness.registry.on_engine_ready()
    harness.answer(adapter)

    assert harness.sent == [LoadAdapter(adapter.digest, adapter.file.path)]
    assert harness.states() == [(1, AdapterState.READY)]


async def test_closing_the_engine_keeps_the_current_generations(harness: RegistryHarness) -> None:
    """No adapter is blamed; pending new loads fail, and draining generations are freed."""
    current, old = await harness.load("kept"), await harness.load("new", "two")
    harness.users[old] = 1
    await harness.load("new", "three")
    pending = harness.registry.load(harness.make_adapter("late", "four"))
    harness.users.clear()
    harness.registry.on_engine_closed(RESTARTING)
    with pytest.raises(EngineRestarting):
        await pending
    harness.registry.attach(harness.sent.append, lambda _: 0)
    harness.sent.clear()
    harness.registry.on_engine_ready()

    assert [each.name for each in harness.registry.all()] == ["kept", "new"]
    assert {state for _, state in harness.states()} == {AdapterState.LOADING}
    assert harness.sent[0] == LoadAdapter(current.digest, current.file.path)
    assert len(harness.sent) == 2


# --- projects and load markers --------------------------------------------------------------------


async def test_adapter_names_are_separate_for_each_project(harness: RegistryHarness) -> None:
    shared, private = await harness.load(content="one"), harness.make_adapter(content="two")
    private.project = "red"
    answer = harness.registry.load(private)
    harness.answer(private)

    assert await answer is harness.registry.get("voice", "red")
    assert harness.registry.get("voice") is shared
    assert harness.registry.find("voice", "other") is None
    assert (shared.generation, private.generation) == (1, 1)
    assert harness.registry.unload("voice", "red") is private
    assert harness.registry.get("voice") is shared


class RecordingMarker(LoadMarker):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def begin(self, digest: str) -> None:
        self.calls.append(("begin", digest))

    def end(self, digest: str) -> None:
        self.calls.append(("end", digest))

    def blame(self, digest: str) -> None:
        self.calls.append(("blame", digest))


async def test_only_the_load_in_progress_is_marked(harness: RegistryHarness) -> None:
    """Reloads are marked one after the other too; a crash blames one."""
    marker = harness.registry.load_marker = RecordingMarker()
    one, two = await harness.load("one", "1"), await harness.load("two", "2")
    harness.restart()
    harness.answer(one)
    harness.registry.on_engine_crash(RESTARTING)

    each = [("begin", one.digest), ("end", one.digest), ("begin", two.digest)]
    assert marker.calls == [*each, ("end", two.digest), *each, ("blame", two.digest)]


async def test_closing_the_engine_blames_no_adapter(harness: RegistryHarness) -> None:
    """The load in progress is no longer marked."""
    marker = harness.registry.load_marker = RecordingMarker()
    loading = harness.registry.load(adapter := harness.make_adapter())
    harness.registry.on_engine_closed(Draining())
    with pytest.raises(Draining):
        await loading

    assert marker.calls == [("begin", adapter.digest), ("end", adapter.digest)]
