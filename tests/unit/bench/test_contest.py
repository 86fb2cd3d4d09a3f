"""Order of the turns and selection of the fastest rival."""

from collections.abc import Callable

from bench.contest import Contest, run_rounds
from bench.measurement import Measurement

SPEEDS = {"corral": 5.0, "slow": 1.0, "fast": 3.0, "limit": 9.0}


def make_turn(system: str, calls: list[str]) -> Callable[[int], Measurement]:
    """Build a turn of a system with a known speed that records its calls."""

    def turn(number: int) -> Measurement:
        calls.append(system)
        return Measurement("load", number, system, SPEEDS[system])

    return turn


def test_only_the_fastest_rival_stays_and_the_order_alternates() -> None:
    """References are measured in every round."""
    calls: list[str] = []
    turns = {system: make_turn(system, calls) for system in SPEEDS}
    rivals = {system: turns[system] for system in ("slow", "fast")}
    contest = Contest(turns["corral"], rivals, {"limit": turns["limit"]})

    measured = list(run_rounds([contest], 2))

    assert calls == ["corral", "limit", "slow", "fast", "fast", "limit", "corral"]
    assert {(m.round, m.system) for m in measured} == {
        *((0, system) for system in SPEEDS),
        *((1, system) for system in ("corral", "limit", "fast")),
    }
