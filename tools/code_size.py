"""Prints how large the product and its tests are: `make check` ends with it. Nothing is refused."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = [
    "svc_kit",
    "model_files",
    "dialects",
    "inference_svc",
    "control_svc",
    "gateway",
    "corral_cli",
]


def modules(*packages: str) -> list[Path]:
    """The Python files below some folders, without those of installed packages."""
    paths = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    return [path for path in paths if "node_modules" not in path.parts]


def num_lines(paths: Iterable[Path]) -> int:
    """The lines of some files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


if __name__ == "__main__":
    product, tests = modules(*PRODUCT), modules("tests")
    num_modules = sum(path.name != "__init__.py" for path in product)
    print(f"Product: {num_lines(product):,} lines in {num_modules} modules", end="; ")
    print(f"tests: {num_lines(tests):,} lines.")
