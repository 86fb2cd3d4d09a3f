"""Generate the pages of docs/ that derive from the code; with --check, only compare them."""

import sys
from collections.abc import Callable
from pathlib import Path

from tools import configuration_page, errors_page, parameters_page
from tools.demo_model import card

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "reference/configuration.md": configuration_page.render,
    "understand/demo-model.md": card.page,
    "reference/errors.md": errors_page.render,
    "reference/parameters.md": parameters_page.render,
}


def main(arguments: list[str]) -> int:
    """Write stale pages, or with --check report them. Returns the exit code."""
    stale = []
    for name, render in PAGES.items():
        path, text = DOCS / name, render()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(f"docs/{name}")
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{name}")
    if "--check" in arguments and stale:
        print(f"out of date: {', '.join(stale)}; run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
