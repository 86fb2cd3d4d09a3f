"""Which adapter a name stands for, by who asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from corral.inference.v1 import adapter_pb2

from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.model_pool.catalog import Catalog
from inference_svc.rpc.adapters import adapters_of
from model_files.adapter_file import AdapterDescription
from svc_kit.errors import AdapterCrashedEngine, AdapterNotFound, ModelCannot, ModelNotFound
from svc_kit.local_files import PrivateFile
from tests.support.pooled import a_known


class Scene:
    """Two models, and adapters by name, project and model."""

    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog([a_known("a"), a_known("b")])
        self._folder = folder

    def add(self, name: str, project: str = "", model: str = "a", standing: float = 0) -> Adapter:
        """An adapter with bytes of its own."""
        file = PrivateFile(self._folder)
        file.write(f"{name} {project}".encode())
        about = AdapterDescription(rank=8, size_bytes=1, title="")
        adapter = Adapter(name, model, file, about, 1.0, project=project, standing_scale=standing)
        return self.catalog.find_model(model).adapters.keep(adapter)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """No adapters."""
    made = Scene(tmp_path)
    yield made
    made.catalog.close()


def test_a_projects_own_adapter_comes_before_the_operators(scene: Scene) -> None:
    """Others have the operator's; each sees one of the name."""
    shared, mine = scene.add("voice", model="b"), scene.add("voice", "mine")

    assert scene.catalog.find("voice", "mine") == (scene.catalog.find_model("a"), mine)
    assert scene.catalog.find("voice", "other") == (scene.catalog.find_model("b"), shared)
    assert [named.adapter for named in scene.catalog.all("mine")] == [None, None, mine]
    assert scene.catalog.find_adapter("voice", "other") is shared


def test_anothers_adapter_does_not_exist(scene: Scene) -> None:
    """As a model, in a list, or where only models can be named."""
    scene.add("voice", "mine")

    with pytest.raises(ModelNotFound):
        scene.catalog.find("voice", "other")
    with pytest.raises(AdapterNotFound):
        scene.catalog.find_adapter("voice", "other")
    with pytest.raises(ModelNotFound):
        scene.catalog.find_model("voice", operation="embed", project="other")
    with pytest.raises(ModelCannot):
        scene.catalog.find_model("voice", operation="embed", project="mine")
    assert [named.name for named in scene.catalog.all("other")] == ["a", "b"]


def test_what_stands_applies_where_a_request_names_no_adapter(scene: Scene) -> None:
    """To its project and its model; not beside another adapter, and not where it failed."""
    standing = scene.add("voice", "mine", standing=0.5)
    scene.add("other", "mine")
    scene.add("third", "mine", model="b", standing=1)

    def worn(project: str, model: str = "a", *asked: str) -> list[str]:
        scales = [adapter_pb2.AdapterScale(adapter=name) for name in asked]
        named = scene.catalog.find(model, project)
        found = adapters_of(scales, named, scene.catalog, project)
        return [f"{a.name} {s.scale}" for a, s in zip(found.adapters, found.stack, strict=True)]

    assert worn("mine") == ["voice 0.5"]
    assert worn("mine", "other") == ["other 1.0"]
    assert worn("mine", "a", "other") == ["other 1.0"]
    assert worn("mine", "b") == ["third 1.0"]
    assert worn("other") == []
    standing.error = AdapterCrashedEngine(adapter="voice")
    assert worn("mine") == []
