"""The documents: every link in them leads somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.test_house_rules import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]


def links_of(page: Path) -> Iterator[str]:
    """The relative targets of a page's links, without fragments."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", target):
            yield path


def test_every_relative_link_leads_to_a_file() -> None:
    """A page that was moved is linked from its new place."""
    broken = [
        f"{page.relative_to(ROOT).as_posix()}: {link}"
        for page in PAGES
        for link in links_of(page)
        if not (page.parent / link).exists()
    ]

    assert broken == []
