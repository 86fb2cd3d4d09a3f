"""Every link and every module path in the documentation exists."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.test_house_rules import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    """The target and the fragment of each relative link of a page."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", link):
            path, _, fragment = link.partition("#")
            yield (page.parent / path if path else page), fragment


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub generates for the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_relative_link_leads_to_a_file() -> None:
    """Links follow a page that moves."""
    broken = [
        f"{page.relative_to(ROOT).as_posix()}: {target.name}"
        for page in PAGES
        for target, _ in links_of(page)
        if not target.exists()
    ]

    assert broken == []


def test_every_fragment_of_a_link_is_a_heading() -> None:
    """Links follow a heading that is renamed."""
    broken = [
        f"{page.relative_to(ROOT).as_posix()}: {target.name}#{fragment}"
        for page in PAGES
        for target, fragment in links_of(page)
        if fragment and target.exists() and fragment not in anchors_of(target)
    ]

    assert broken == []


def test_every_module_that_a_page_names_exists() -> None:
    """Paths follow a module that moves; a page may omit leading folders."""
    modules = [f"/{path.relative_to(ROOT).as_posix()}" for path in source_files()]
    unknown = [
        f"{page.relative_to(ROOT).as_posix()}: {name}"
        for page in PAGES
        for name in re.findall(r"`([\w./-]+\.py)`", page.read_text(encoding="utf-8"))
        if not any(module.endswith(f"/{name}") for module in modules)
    ]

    assert unknown == []


def source_files() -> Iterator[Path]:
    """Every Python file of the repository, without environments and build outputs."""
    for folder in ROOT.iterdir():
        if folder.is_dir() and not folder.name.startswith((".", "build")):
            yield from folder.rglob("*.py")
