"""Turns are fair, and no time goes to a layout that has lost."""

from collections.abc import Callable

from bench.contest import Contest, rounds
from bench.measurement import Measurement

SPEEDS = {"corral": 5.0, "slow": 1.0, "fast": 3.0, "limit": 9.0}


def a_turn(system: str, asked: list[str]) -> Callable[[int], Measurement]:
    """A system of known speed that notes when it is measured."""

    def turn(number: int) -> Measurement:
        asked.append(system)
        return Measurement("load", number, system, SPEEDS[system])

    return turn


def test_only_the_fastest_rival_goes_on_and_the_order_turns_each_round() -> None:
    """The others would cost time and change nothing; systems beside the rivals always stay."""
    asked: list[str] = []
    turns = {system: a_turn(system, asked) for system in SPEEDS}
    rivals = {system: turns[system] for system in ("slow", "fast")}
    contest = Contest(turns["corral"], rivals, {"limit": turns["limit"]})

    measured = list(rounds([contest], 2))

    assert asked == ["corral", "limit", "slow", "fast", "fast", "limit", "corral"]
    assert {(m.round, m.system) for m in measured} == {
        *((0, system) for system in SPEEDS),
        *((1, system) for system in ("corral", "limit", "fast")),
    }
