"""Tests of resolving adapter names by project."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from corral.inference.v1 import adapter_pb2

from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.model_pool.catalog import Catalog
from inference_svc.rpc.adapters import resolve_adapters
from model_files.adapter_facts import AdapterFacts
from svc_kit.errors import AdapterCrashedEngine, AdapterNotFound, ModelCannot, ModelNotFound
from svc_kit.local_files import PrivateFile
from tests.support.pooled import make_entry


class CatalogFixture:
    """A catalog with two models, to which tests add adapters."""

    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog([make_entry("a"), make_entry("b")])
        self._folder = folder

    def add(self, name: str, project: str = "", model: str = "a", standing: float = 0) -> Adapter:
        """Add an adapter with a file of its own."""
        file = PrivateFile(self._folder)
        file.write(f"{name} {project}".encode())
        description = AdapterFacts(
            architecture="llama", base_model="", rank=8, size_bytes=1, title=""
        )
        adapter = Adapter(
            name, model, file, description, 1.0, project=project, standing_scale=standing
        )
        self.catalog.find_model(model).adapters.add(adapter)
        return adapter


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[CatalogFixture]:
    """Without adapters."""
    fixture = CatalogFixture(tmp_path)
    yield fixture
    fixture.catalog.close()


def test_a_projects_own_adapter_hides_the_operators(scene: CatalogFixture) -> None:
    """Other projects use the operator's; each lists the name once."""
    shared, private = scene.add("voice", model="b"), scene.add("voice", "red")

    assert scene.catalog.resolve("voice", "red") == (scene.catalog.find_model("a"), private)
    assert scene.catalog.resolve("voice", "other") == (scene.catalog.find_model("b"), shared)
    visible = scene.catalog.visible_models("red")
    assert [resolved.adapter for resolved in visible] == [None, None, private]
    assert scene.catalog.find_adapter("voice", "other") is shared


def test_the_adapter_of_another_project_is_not_found(scene: CatalogFixture) -> None:
    """As a model, in a list, or where adapters are not allowed."""
    scene.add("voice", "red")

    with pytest.raises(ModelNotFound):
        scene.catalog.resolve("voice", "other")
    with pytest.raises(AdapterNotFound):
        scene.catalog.find_adapter("voice", "other")
    with pytest.raises(ModelNotFound):
        scene.catalog.find_model("voice", operation="embed", project="other")
    with pytest.raises(ModelCannot):
        scene.catalog.find_model("voice", operation="embed", project="red")
    assert [resolved.name for resolved in scene.catalog.visible_models("other")] == ["a", "b"]


def test_a_standing_adapter_applies_to_requests_that_name_no_adapter(scene: CatalogFixture) -> None:
    """Of its project and model only, and not after it failed to load."""
    standing = scene.add("voice", "red", standing=0.5)
    scene.add("other", "red")
    scene.add("third", "red", model="b", standing=1)

    def used(project: str, model: str = "a", *names: str) -> list[str]:
        scales = [adapter_pb2.AdapterScale(adapter=name) for name in names]
        resolved = scene.catalog.resolve(model, project)
        result = resolve_adapters(scales, resolved, scene.catalog, project)
        return [f"{a.name} {s.scale}" for a, s in zip(result.adapters, result.stack, strict=True)]

    assert used("red") == ["voice 0.5"]
    assert used("red", "other") == ["other 1.0"]
    assert used("red", "a", "other") == ["other 1.0"]
    assert used("red", "b") == ["third 1.0"]
    assert used("other") == []
    standing.error = AdapterCrashedEngine(adapter="voice")
    assert used("red") == []
