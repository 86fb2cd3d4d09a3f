"""Ratios and verdicts."""

import pytest

from bench.measurement import Measurement, Result, best, compared


def measured(round_number: int, system: str, speed: float) -> Measurement:
    """One measurement of the same load."""
    return Measurement("load", round_number, system, speed)


ROUNDS = [
    *(measured(0, "corral", 90.0), measured(0, "llama-server streams", 100.0)),
    *(measured(1, "corral", 10.0), measured(1, "llama-server streams", 20.0)),  # a busy machine
    *(measured(2, "corral", 99.0), measured(2, "llama-server streams", 100.0)),
    measured(0, "llama-server unified", 150.0),  # fast once, and gone
]


def test_ratios_are_made_within_a_round() -> None:
    """A slow round slows both, so it moves the ratio less than either speed."""
    result = compared(ROUNDS, "load", "llama-server streams", 0.95)

    assert result.ratios == (0.9, 0.5, 0.99)
    assert result.ratio == 0.9
    assert (result.own, result.peer) == (90.0, 100.0)


def test_the_best_peer_is_the_fastest_of_those_that_were_measured_to_the_end() -> None:
    """A layout that lost the first round is not brought back by it."""
    assert best(ROUNDS, "load", "llama-server") == "llama-server streams"


def test_without_a_peer_there_is_a_speed_and_no_verdict() -> None:
    """Corral can be measured alone."""
    result = compared([measured(0, "corral", 90.0)], "load", "llama-server", 1.0)

    assert (result.own, result.ratios, result.is_met) == (90.0, (), None)


@pytest.mark.parametrize(
    ("ratio", "bound", "is_met"),
    [
        (1.0, "at least", True),
        (0.99, "at least", False),
        (1.0, "at most", True),
        (1.01, "at most", False),
    ],
)
def test_a_target_is_met_up_to_and_at_its_bound(ratio: float, bound: str, is_met: bool) -> None:
    """What is promised is the bound itself."""
    result = Result("load", (ratio,), 1.0, 1.0, 1.0, "peer", bound=bound)  # type: ignore[arg-type]  # parametrized

    assert result.is_met is is_met
