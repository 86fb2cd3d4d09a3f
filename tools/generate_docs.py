"""Generate the files that derive from others, such as pages; with --check, only compare them."""

import sys
from collections.abc import Callable
from pathlib import Path

from tools import (
    configuration_page,
    engines_page,
    errors_page,
    models_page,
    parameters_page,
    prometheus_rule,
)
from tools.demo_model import card

ROOT = Path(__file__).resolve().parent.parent
PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/configuration.md": configuration_page.render,
    "docs/understand/demo-model.md": card.page,
    "docs/reference/engines.md": engines_page.render,
    "docs/reference/errors.md": errors_page.render,
    "docs/reference/models.md": models_page.render,
    "docs/reference/parameters.md": parameters_page.render,
    prometheus_rule.PATH: prometheus_rule.render,
}


def main(arguments: list[str]) -> int:
    """Write stale pages, or with --check report them. Returns the exit code."""
    stale = []
    for name, render in PAGES.items():
        path, text = ROOT / name, render()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if "--check" in arguments and stale:
        print(f"out of date: {', '.join(stale)}; run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
