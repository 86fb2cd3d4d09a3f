"""Every import is a declared, documented and locked dependency."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.test_house_rules import PRODUCT, ROOT

LOCKS = ["build", "runtime", "dev", "weights", "bench"]
FIRST_PARTY: Final = frozenset({*PRODUCT, "bench", "corral", "migrations", "tests", "tools"})
PACKAGES: Final = {
    "agents": "openai-agents",
    "docx": "python-docx",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc_channelz": "grpcio-channelz",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "llama_cpp": "llama-cpp-python",
}
"""Distribution names that differ from the names of their modules."""


def imported(*folders: str) -> dict[str, str]:
    """Imported distributions, each with one module that imports it."""
    return {
        package: path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts
        for name in imports_of(path)
        if (package := package_of(name)) is not None
    }


def imports_of(path: Path) -> Iterator[str]:
    """Modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def package_of(module: str) -> str | None:
    """The distribution of a module; None for the standard library and Corral's own packages."""
    top, *_ = module.split(".")
    if top in FIRST_PARTY or top in sys.stdlib_module_names:
        return None
    space = ".".join(module.split(".")[:2])
    return PACKAGES.get(space) or PACKAGES.get(top) or top.replace("_", "-")


def wanted(*names: str) -> set[str]:
    """Distributions named in the inputs of the locks."""
    lines = (line for name in names for line in lines_of(f"requirements/{name}.in"))
    return {re.split(r"[=\[]", line)[0] for line in lines if not line.startswith("-")}


def test_what_is_imported_is_asked_for() -> None:
    """A package installed only because another one needs it may be gone with its next release."""
    inputs = [path.stem for path in (ROOT / "requirements").glob("*.in")]
    brought = {**imported("bench", "migrations", "tests", "tools"), **imported(*PRODUCT)}
    shipped = imported(*PRODUCT, "migrations")

    assert {name: brought[name] for name in brought.keys() - wanted(*inputs)} == {}
    assert {name: shipped[name] for name in shipped.keys() - wanted("runtime")} == {}


def test_what_is_asked_for_is_imported() -> None:
    """Except for packages that others load by name."""
    loaded = {"aiosqlite", "httptools", "websockets"}

    assert wanted("runtime") - imported(*PRODUCT).keys() == loaded


def test_every_dependency_has_a_reason() -> None:
    """The page on dependencies gives the reason for each."""
    page = (ROOT / "docs/understand/dependencies.md").read_text()
    reasons = re.split(r"[^a-z0-9-]+", page)

    assert wanted("runtime") - set(reasons) == set()


def test_the_project_depends_on_what_is_locked() -> None:
    """pyproject.toml and the input of the lock list the same packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert lines_of("requirements/runtime.in") == sorted(project["dependencies"])


def test_lock_files_name_no_address() -> None:
    """The installing machine configures the index."""
    locks = [*(ROOT / "requirements").glob("*"), ROOT / "tests/clients/package-lock.json"]
    named = [path.name for path in locks if "://" in without_funding(path.read_text())]

    assert named == []


def test_every_locked_package_is_hashed() -> None:
    """Without a hash, any file of that name would be installed."""
    for path in (ROOT / "requirements").glob("*.txt"):
        entries = path.read_text().replace("\\\n", " ").splitlines()
        bare = [line for line in entries if "==" in line and "--hash=sha256:" not in line]
        assert bare == [], path.name


@pytest.mark.parametrize("name", LOCKS)
def test_every_wanted_package_is_locked(name: str) -> None:
    """The lock is newer than the last change of its input."""
    locked = {line.partition("==")[0] for line in lines_of(f"requirements/{name}.txt")}

    assert wanted(name) - locked == set()


def lines_of(name: str) -> list[str]:
    """The lines of a requirements file with a requirement."""
    lines = (ROOT / name).read_text().splitlines()
    return sorted(line for line in lines if line and line[0] not in "# ")


def without_funding(text: str) -> str:
    """A package lock without funding URLs."""
    return "\n".join(line for line in text.splitlines() if '"url":' not in line)
