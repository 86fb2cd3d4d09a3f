"""Turns measurements into ratios: the table on the screen, the JSON file and the page in docs.

A ratio is made of two measurements of one round, so that a machine that gets slower during the run
slows both; the median over the rounds is reported, with the lowest and the highest.
"""

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.paths import REPOSITORY

START, END = "<!-- results: start -->", "<!-- results: end -->"
CASES = {
    "decode": "Decoding, gRPC `Generate` beside `llama-batched-bench`",
    "http": "`POST /v1/completions` beside `llama-server`",
    "grpc": "gRPC `Generate` beside `llama-server` over HTTP",
}


@dataclass(frozen=True)
class Measurement:
    """One system under one load in one round."""

    case: str
    sampling: str
    concurrency: int
    round: int
    system: str
    tokens_per_s: float
    figures: dict[str, Any] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)  # by role, while it was measured


@dataclass(frozen=True)
class Row:
    """One line of the report: Corral, its peer and the ratio of the two."""

    case: str
    sampling: str
    concurrency: int
    corral: float  # tokens/s, median over the rounds
    peer_name: str  # empty: there is none
    peer: float
    ratios: tuple[float, ...]
    first_token_ms: tuple[float, float]  # Corral, peer; 0: not measured

    @property
    def ratio(self) -> float:
        """Corral's speed as a share of its peer's; 0 without a peer."""
        return statistics.median(self.ratios) if self.ratios else 0.0


def rows_of(measurements: Iterable[Measurement]) -> list[Row]:
    """Pair Corral's measurements with its peers' and sum them up over the rounds."""
    groups: dict[tuple[str, str, int], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.case, one.sampling, one.concurrency), []).append(one)
    return [_row(key, group) for key, group in groups.items()]


def _row(key: tuple[str, str, int], group: Sequence[Measurement]) -> Row:
    own = {m.round: m for m in group if m.system == "corral"}
    peers = {m.round: m for m in group if m.system != "corral"}
    return Row(
        *key,
        corral=_median(m.tokens_per_s for m in own.values()),
        peer_name=next((m.system for m in peers.values()), ""),
        peer=_median(m.tokens_per_s for m in peers.values()),
        ratios=tuple(m.tokens_per_s / peers[n].tokens_per_s for n, m in own.items() if n in peers),
        first_token_ms=(_first_token(own.values()), _first_token(peers.values())),
    )


def _first_token(measurements: Iterable[Measurement]) -> float:
    return _median(m.figures.get("first_token_p50_ms", 0.0) for m in measurements)


def _median(values: Iterable[float]) -> float:
    return statistics.median([*values] or [0.0])


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown tables, one a case and sampling; readable as plain text too."""
    lines: list[str] = []
    shown = ("", "")
    for row in rows:
        if (row.case, row.sampling) != shown:
            shown = (row.case, row.sampling)
            lines += [
                *("", f"{CASES[row.case]}; {row.sampling}:", ""),
                "| at once | corral tok/s | peer tok/s | ratio | low to high |"
                " corral first token ms | peer first token ms |",
                "|--------:|-------------:|-----------:|------:|------------:|"
                "----------------------:|--------------------:|",
            ]
        lines.append(_line(row))
    return "\n".join(lines[1:])


def _line(row: Row) -> str:
    spread = f"{min(row.ratios):.2f} to {max(row.ratios):.2f}" if row.ratios else "-"

    def shown(value: float, digits: int) -> str:
        return f"{value:.{digits}f}" if value else "-"

    own_first, peer_first = row.first_token_ms
    return (
        f"| {row.concurrency:>7} | {row.corral:>12.1f} | {shown(row.peer, 1):>10} "
        f"| {shown(row.ratio, 2):>5} | {spread:>11} "
        f"| {shown(own_first, 0):>21} | {shown(peer_first, 0):>19} |"
    )


def describe_machine() -> dict[str, Any]:
    """Return what a reader needs to judge the figures: processor, versions, other load."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.stdout.strip(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "llama_cpp_python": metadata.version("llama-cpp-python"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def write_json(
    path: Path, context: dict[str, Any], rows: Sequence[Row], measurements: Sequence[Measurement]
) -> None:
    """Write everything that was measured, and the rows made from it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = context | {
        "rows": [asdict(row) | {"ratio": round(row.ratio, 3)} for row in rows],
        "measurements": [asdict(one) for one in measurements],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def publish(page: Path, context: dict[str, Any], rows: Sequence[Row]) -> None:
    """Replace the results on the page; what is written around them stays."""
    text = page.read_text() if page.exists() else f"# Benchmarks\n\n{START}\n{END}\n"
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{START}\n{_page_section(context, rows)}\n{END}{after}")


def _page_section(context: dict[str, Any], rows: Sequence[Row]) -> str:
    machine, settings = context["machine"], context["settings"]
    commands = "\n".join(line for lines in context["commands"].values() for line in lines)
    home = str(Path.home())
    return (
        f"{machine['date']}, commit {machine['commit']}, {machine['cores']} x "
        f"{machine['processor']}, llama-cpp-python {machine['llama_cpp_python']}, "
        f"load before the run {machine['load_before']}; {settings['rounds']} rounds.\n\n"
        f"{table(rows)}\n\nWhat ran:\n\n```\n{commands.replace(home, '~')}\n```"
    )
