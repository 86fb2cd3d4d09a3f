"""Settings of all tests."""

import gc
import os
from collections.abc import Callable, Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path

import hypothesis
import pytest

from tests.outside.llama_cpp.results import summaries
from tests.support.examples import UNRELIABLE_CHECKS, examples
from tests.support.media_models import MediaPair, write_pair
from tests.support.processes import LIMIT_S

TESTS = Path(__file__).parent
# No deadline, since the duration of an example depends on the load of the machine.
hypothesis.settings.register_profile(
    "corral",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=UNRELIABLE_CHECKS,
)
hypothesis.settings.load_profile("corral")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with real processes the time that these need on a busy machine, and spread them.

    Their files, which wait most of the time, alternate with files that need a core. Those of unit
    tests, which are short, are last, so that all workers end at about the same time.
    """
    numbers: dict[str, dict[Path, int]] = {}
    kinds = [kind_of(item) for item in items]
    for kind, item in zip(kinds, items, strict=True):
        files = numbers.setdefault(kind, {})
        files.setdefault(item.path, len(files))
        if kind == "e2e" and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_S))
    places = [
        (kind == "unit", numbers[kind][item.path] / len(numbers[kind]))
        for kind, item in zip(kinds, items, strict=True)
    ]
    items[:] = [item for _, item in sorted(zip(places, items, strict=True), key=itemgetter(0))]


def kind_of(item: pytest.Item) -> str:
    """The folder of a test, or "e2e" for all tests with real processes."""
    if item.get_closest_marker("e2e"):
        return "e2e"
    return "unit" if is_unit(item.path) else "other"


@cache
def is_unit(path: Path) -> bool:
    return TESTS / "unit" in path.parents


def pytest_sessionstart() -> None:
    """Collect tests without garbage collection, which would go through them many times."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt what was collected from garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _keep_collections_short() -> Iterator[None]:
    """Exempt what outlives a file too: full runs would take longer from file to file. What the file
    left without closing it is reported in the file."""
    yield
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the results of the tests with others' cases, if they were run."""
    passed = terminalreporter.getreports("passed")
    folders = tuple(f"tests/outside/{name}/" for name in ("llama_cpp", "sglang", "vllm"))
    if any(report.nodeid.startswith(folders) for report in passed):
        terminalreporter.section("docs/reference/models.md")
        terminalreporter.write_line("\n".join(summaries()))


@pytest.fixture(autouse=True)
def _clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove CORRAL_ variables, which would change the settings of tested services."""
    for name in [name for name in os.environ if name.startswith("CORRAL_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def media_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], MediaPair]:
    """Writes a text model and its projector, each kind once in a session."""
    return cache(lambda kind: write_pair(kind, tmp_path_factory.mktemp(kind)))
