"""Tests that docs/reference/errors.md is generated from the code and is up to date."""

from svc_kit.errors import ERROR_CLASSES
from tools import errors_page
from tools.generate_docs import PAGES, ROOT


def test_every_reason_has_a_row_with_its_meaning() -> None:
    """One row for each error class, with a non-empty meaning."""
    rows = [line for line in errors_page.render().splitlines() if line.startswith("| `")]
    reasons = [row.split("`")[1] for row in rows]

    assert sorted(reasons) == sorted(cls.reason for cls in ERROR_CLASSES)
    assert all(row.split("|")[-2].strip() for row in rows)


def test_a_row_has_statuses_code_metadata_and_meaning() -> None:
    """The meaning is the comment of the enum value in the proto."""
    assert (
        "| `REQUEST_TOO_LARGE` | 413 | `request_too_large` | `size`, `limit` | a body or message "
        "is over its limit (HTTP 413) |"
    ) in errors_page.render()


def test_the_committed_page_is_up_to_date() -> None:
    """Run `make docs` if this fails."""
    name = "docs/reference/errors.md"
    assert PAGES[name]() == (ROOT / name).read_text(encoding="utf-8")
