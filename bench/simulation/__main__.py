"""Compares balancing policies of 2 to 1,000 replicas, and the simulation with real ones.

python -m bench.simulation [--quick] [--validate] [--publish]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.paths import REPOSITORY
from bench.plots import line_chart
from bench.simulation.study import CORRAL, COUNTS, CPU, GPU, ROUND_ROBIN, Row, run_studies
from bench.simulation.validation import validate
from tools.json_lines import layout

_RESULTS: Final = REPOSITORY / "bench/results/simulation.json"
_PLOTS: Final = REPOSITORY / "docs/understand/simulation"
_LOGS: Final = REPOSITORY / "build/simulation"
_VALIDATED: Final = (2, 4, 8)
_QUICK_COUNT: Final = 16


def main() -> int:
    """Run what is asked for, and print each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="up to 16 replicas only")
    add("--validate", action="store_true", help="run real replicas instead, ten minutes")
    add("--publish", action="store_true", help="write bench/results/simulation*.json and the plots")
    options = parser.parse_args()
    if options.validate:
        rows = []
        for compared in validate(_VALIDATED, CORRAL, ROUND_ROBIN, _LOGS, seconds=80.0):
            rows.append(compared._asdict())
            print(rows[-1], flush=True)
        if options.publish:
            _write(_RESULTS.with_name("simulation-validation.json"), {"rows": rows})
        return 0
    max_replicas = _QUICK_COUNT if options.quick else COUNTS[-1]
    found = []
    for row in run_studies(max_replicas=max_replicas):
        found.append(row)
        print(*row, flush=True)
    if options.publish:
        times = {"gpu": GPU.shape.times._asdict(), "cpu": CPU.shape.times._asdict()}
        _write(_RESULTS, {"step_times": times, "rows": [row._asdict() for row in found]})
        _PLOTS.mkdir(exist_ok=True)
        for name, chart in plots(found).items():
            (_PLOTS / name).write_text(chart)
    return 0


def plots(rows: Sequence[Row]) -> dict[str, str]:
    """The plots by file name: hit rates and waits by the number of replicas, or by ring."""

    def chart(study: str, figure: str, legend: str) -> str:
        series: dict[str, list[tuple[str, float]]] = {}
        for row in rows:
            if row.study == study:
                is_ring = study == "ring"
                name = f"{row.replicas:,} replicas" if is_ring else row.policy
                x = row.policy if is_ring else f"{row.replicas:,}"
                series.setdefault(name, []).append((x, row.figures[figure]))
        return line_chart(series, legend)

    return {
        "hit-rates.svg": chart("replicas", "of_perfect", "hit rate, as part of a perfect router's"),
        "waits.svg": chart("replicas", "wait_p99_s", "p99 of the time to the first token, seconds"),
        "rings.svg": chart(
            "ring", "of_perfect", "hit rate by points of the ring, as part of a perfect router's"
        ),
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(layout(content))


if __name__ == "__main__":
    sys.exit(main())
