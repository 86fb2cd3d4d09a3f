"""Structure of the product: limits of a file and a folder, which are only ever lowered."""

import ast
from collections import Counter
from pathlib import PurePath
from typing import Final

import pytest

from tests.architecture.test_house_rules import PRODUCT, ROOT, product_files

MAX_MODULES_IN_A_FOLDER: Final = 20
MAX_LINES_OF_A_MODULE: Final = 450
FIELD_WORDS: Final = frozenset(
    {
        "batching",
        "chunking",
        "embedding",
        "logging",
        "ranking",
        "reasoning",
        "routing",
        "sampling",
        "scheduling",
        "streaming",
        "versioning",
    }
)
"""Words of the field that end in -ing and name a thing."""
PARTS_OF_A_SLICE: Final = frozenset(
    {
        "backend",
        "context",
        "embeddings",
        "errors",
        "events",
        "model",
        "objects",
        "proto",
        "queries",
        "recorder",
        "requests",
        "sampling_params",
        "service",
        "servicer",
        "servicers",
        "slice",
        "tables",
        "tools",
        "transitions",
        "worker",
    }
)
"""Module names that several packages of a service may share, for the same part of each."""

MODULES: Final = [
    path.relative_to(ROOT).as_posix() for path in product_files() if path.name != "__init__.py"
]


def num_lines(name: str) -> int:
    return len((ROOT / name).read_text(encoding="utf-8").splitlines())


def test_folders_hold_few_modules() -> None:
    """Readers find a module from the tree alone."""
    counts = Counter(name.rpartition("/")[0] for name in MODULES)

    assert {
        folder: count for folder, count in counts.items() if count > MAX_MODULES_IN_A_FOLDER
    } == {}


def test_modules_are_short() -> None:
    """A longer module contains more than one thing."""
    longest = {name: num_lines(name) for name in MODULES if num_lines(name) > MAX_LINES_OF_A_MODULE}

    assert longest == {}


def test_modules_are_named_by_nouns() -> None:
    """A gerund names an activity, not the contents of the file."""
    gerunds = [
        name
        for name in MODULES
        if any(
            word.endswith("ing") and word not in {*FIELD_WORDS, "string", "ring"}
            for word in PurePath(name).stem.split("_")
        )
    ]

    assert gerunds == []


@pytest.mark.parametrize("package", PRODUCT)
def test_bare_names_are_unique_in_a_service(package: str) -> None:
    """Modules share a name only if they are the same part of two slices."""
    names = [name for name in MODULES if name.startswith(f"{package}/")]
    counts = Counter(PurePath(name).stem for name in names)
    twice = {
        stem: [name for name in names if PurePath(name).stem == stem]
        for stem, count in counts.items()
        if count > 1 and stem not in {*PARTS_OF_A_SLICE, "__main__"}
    }

    assert twice == {}


def test_every_module_has_a_short_docstring() -> None:
    """It says what the module does; more than ten lines belong into docs/."""
    docstrings = {
        name: ast.get_docstring(ast.parse((ROOT / name).read_text(encoding="utf-8")))
        for name in MODULES
    }

    assert [name for name, text in docstrings.items() if not text] == []
    assert [name for name, text in docstrings.items() if len((text or "").splitlines()) > 10] == []
