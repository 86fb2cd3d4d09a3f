"""Results of these tests, which stand in docs/reference/models.md (`tools/models_page.py`).

A test compares what it measured with the committed file; with CORRAL_RECORD=1 it writes the file,
and `make docs` the page.
"""

import json
import os
from pathlib import Path
from typing import Any, Final, TypedDict

from tools.json_lines import layout

RESULTS: Final = Path(__file__).with_name("results")
RECORDS: Final = bool(os.environ.get("CORRAL_RECORD"))


class Results(TypedDict):
    """`rows` has the cells of the columns by the name of the template of a family."""

    summary: str
    columns: list[str]
    rows: dict[str, list[str]]


def check_results(name: str, measured: Results) -> None:
    path = RESULTS / f"{name}.json"
    if RECORDS:
        path.parent.mkdir(exist_ok=True)
        path.write_text(layout(measured))
    committed: dict[str, Any] = json.loads(path.read_text())

    assert measured == committed, "repeat with CORRAL_RECORD=1, then make docs"


def summaries() -> list[str]:
    """One line for each kind of result."""
    return [json.loads(path.read_text())["summary"] for path in sorted(RESULTS.glob("*.json"))]
