"""Measures the branch coverage of the packages where it matters, and fails below their minima.

Each package is measured by its own tests; what other tests happen to execute proves little. The
percentages are those of `coverage report` with branches: executed lines and branches of all.
Run by `make coverage`; it takes some ten minutes on two cores.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
_DATA: Final = ROOT / "build" / "coverage"


class Area(NamedTuple):
    """Modules, the tests that are written for them, and the coverage that these must reach."""

    minimum: int
    modules: tuple[str, ...]
    tests: tuple[str, ...]


AREAS: Final = {
    "engine": Area(
        94,
        ("inference_svc/engine/*",),
        ("tests/unit/inference_svc/engine", "tests/property/inference_svc/engine"),
    ),
    "jobs": Area(
        96,
        ("control_svc/jobs/*",),
        ("tests/service/control_svc/jobs", "tests/property/control_svc/jobs"),
    ),
    "event log": Area(
        94,
        ("control_svc/event_log/*",),
        (
            "tests/unit/control_svc/event_log",
            "tests/service/control_svc/event_log",
            "tests/property/control_svc/event_log",
        ),
    ),
    "error mapping": Area(
        97,
        ("svc_kit/errors/*", "svc_kit/rpc/interceptors.py", "dialects/openai/errors.py"),
        (
            "tests/unit/svc_kit/errors",
            "tests/unit/svc_kit/rpc",
            "tests/unit/dialects/openai/test_errors.py",
            "tests/property/svc_kit",
            "tests/service/svc_kit/rpc",
        ),
    ),
    "tenancy": Area(
        94,
        ("control_svc/projects/*", "control_svc/base/*", "svc_kit/auth/*"),
        (
            "tests/unit/svc_kit/auth",
            "tests/service/control_svc/projects",
            "tests/service/control_svc/test_tenancy.py",
            "tests/property/control_svc/base",
        ),
    ),
}


def main(arguments: list[str]) -> int:
    """Measure the named areas, by default all; return how many are below their minimum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", choices=[[], *AREAS], help="default: all")
    parser.add_argument("--workers", default="2")
    options = parser.parse_args(arguments)
    _DATA.mkdir(parents=True, exist_ok=True)
    return sum(not _is_covered(name, options.workers) for name in options.areas or AREAS)


def _is_covered(name: str, workers: str) -> bool:
    area = AREAS[name]
    print(f"==== {name}", flush=True)
    environment = {**os.environ, "COVERAGE_FILE": str(_DATA / name.replace(" ", "-"))}
    measured = sorted({module.partition("/")[0] for module in area.modules})
    test = [
        *("pytest", "-q", "-n", workers, "--dist", "loadfile", "-o", "timeout=300"),
        *("--cov-branch", "--cov-report=", *(f"--cov={package}" for package in measured)),
        *("-m", "not slow and not bench", *area.tests),
    ]
    report = [
        *("coverage", "report", f"--fail-under={area.minimum}"),
        f"--include={','.join(area.modules)}",
    ]
    return all(
        subprocess.run([sys.executable, "-m", *each], cwd=ROOT, env=environment).returncode == 0
        for each in (test, report)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
