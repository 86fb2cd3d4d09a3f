"""Runs every part of the benchmark on Corral alone, with small loads and the demo model."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import servers
from bench.parts import (
    batches,
    chats,
    constrained,
    decode,
    files,
    memory,
    objects,
    runs,
    shared,
    steps,
    tokens,
    uneven,
    unique,
)
from bench.paths import BUNDLED_MODEL, REPOSITORY
from bench.servers import EngineShape, Server
from bench.stage import Part, Stage

pytestmark = pytest.mark.e2e
SHAPE = EngineShape(BUNDLED_MODEL, slots=16, context_tokens=2048, threads=1)


class OneServerStage(Stage):
    """A stage that starts one server for all parts."""

    server: Server

    @contextmanager
    def corral(
        self,
        shape: EngineShape,
        settings: Mapping[str, str] | None = None,
        key: str = "",
        inference: str = "",
        checkout: Path = REPOSITORY,
    ) -> Iterator[Server]:
        yield self.server


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A quick stage without peers."""
    folder = tmp_path_factory.mktemp("bench")
    quickly = {"CORRAL_INFERENCE_ENGINE__WARM_UP_S": "0"}
    with asyncio.Runner() as runner, servers.corral(SHAPE, folder, quickly) as server:
        stage = OneServerStage(BUNDLED_MODEL, None, 1, folder, runner, quick=True)
        stage.server = server
        yield stage


PARTS = (
    decode.PART,
    uneven.PART,
    unique.PART,
    shared.PART,
    constrained.PART,
    memory.PART,
    batches.PART,
    runs.PART,
    steps.PART,
    tokens.PART,
    chats.PART,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_measures_corral_without_peers(part: Part, stage: Stage) -> None:
    """Every load has results, and the part draws conclusions."""
    measurements = [*part.measure(stage)]

    assert any(m.value > 0 for m in measurements)
    assert all(m.round == 0 for m in measurements)
    assert part.conclude(measurements)


@pytest.mark.parametrize("part", [files.PART, objects.PART], ids=lambda part: part.name)
def test_parts_of_the_control_service_are_measured(part: Part, tmp_path: Path) -> None:
    """Files compared with a bare stream, and small objects on both databases."""
    with asyncio.Runner() as runner:
        stage = Stage(BUNDLED_MODEL, None, 1, tmp_path, runner, quick=True)
        results = part.conclude([*part.measure(stage)])

    assert all(result.ratio > 0 for result in results)
