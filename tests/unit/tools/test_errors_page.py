"""docs/reference/errors.md follows from the code."""

from svc_kit.errors import ERROR_CLASSES
from tools import errors_page
from tools.generate_docs import DOCS, PAGES


def test_every_reason_has_a_row_with_its_meaning() -> None:
    """A reader of an error finds its reason."""
    rows = [line for line in errors_page.render().splitlines() if line.startswith("| `")]
    reasons = [row.split("`")[1] for row in rows]

    assert sorted(reasons) == sorted(cls.reason for cls in ERROR_CLASSES)
    assert all(row.split("|")[-2].strip() for row in rows)


def test_a_row_says_what_the_classes_say() -> None:
    """Status, OpenAI's code, metadata and the contract's own words."""
    assert (
        "| `REQUEST_TOO_LARGE` | 413 | `request_too_large` | `size`, `limit` | a body or message "
        "is over its limit (HTTP 413) |"
    ) in errors_page.render()


def test_the_committed_page_is_what_the_code_says() -> None:
    """`make docs` was run after the last change."""
    assert PAGES["reference/errors.md"]() == (DOCS / "reference/errors.md").read_text(
        encoding="utf-8"
    )
