"""Ratios, tables and the page they are written to."""

from pathlib import Path
from typing import Any

from bench.report import END, START, Measurement, publish, rows_of, table

CONTEXT: dict[str, Any] = {
    "machine": {
        "date": "2026-01-01 00:00 UTC",
        "commit": "abc",
        "cores": 2,
        "processor": "X",
        "llama_cpp_python": "0",
        "load_before": 0.0,
    },
    "settings": {"rounds": 3},
    "commands": {"peer": ("run peer",)},
}


def measured(round_number: int, system: str, rate: float) -> Measurement:
    """One measurement of the same load."""
    return Measurement("http", "greedy", 4, round_number, system, rate)


ROUNDS = [
    *(measured(0, "corral", 90.0), measured(0, "llama-server", 100.0)),
    *(measured(1, "corral", 10.0), measured(1, "llama-server", 20.0)),  # the machine was busy
    *(measured(2, "corral", 99.0), measured(2, "llama-server", 100.0)),
]


def test_ratios_are_made_within_a_round() -> None:
    """A slow round slows both, so it moves the ratio less than either speed."""
    (row,) = rows_of(ROUNDS)

    assert row.ratios == (0.9, 0.5, 0.99)
    assert row.ratio == 0.9
    assert (row.corral, row.peer_name, row.peer) == (90.0, "llama-server", 100.0)


def test_without_a_peer_there_is_a_speed_and_no_ratio() -> None:
    """The quick run has no peers."""
    (row,) = rows_of([measured(0, "corral", 90.0)])

    assert (row.corral, row.peer_name, row.ratio) == (90.0, "", 0.0)
    assert "90.0" in table([row])


def test_publishing_replaces_the_results_and_nothing_else(tmp_path: Path) -> None:
    """What people wrote around the results stays, however often they are written."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{START}\nold\n{END}\nafter\n")

    publish(page, CONTEXT, rows_of(ROUNDS))
    once = page.read_text()
    publish(page, CONTEXT, rows_of(ROUNDS))

    assert page.read_text() == once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "0.50 to 0.99" in once
    assert "run peer" in once
    assert "old" not in once
