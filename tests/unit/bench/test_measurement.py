"""Ratios and targets."""

import pytest

from bench.measurement import Measurement, Result, best_system, compare


def make_measurement(round_number: int, system: str, speed: float) -> Measurement:
    return Measurement("load", round_number, system, speed)


ROUNDS = [
    *(make_measurement(0, "corral", 90.0), make_measurement(0, "llama-server streams", 100.0)),
    *(
        make_measurement(1, "corral", 10.0),
        make_measurement(1, "llama-server streams", 20.0),
    ),  # a busy machine
    *(make_measurement(2, "corral", 99.0), make_measurement(2, "llama-server streams", 100.0)),
    make_measurement(0, "llama-server unified", 150.0),  # measured in one round only
]


def test_ratios_compare_values_of_the_same_round() -> None:
    """A slow round affects both systems."""
    result = compare(ROUNDS, "load", "llama-server streams", 0.95)

    assert result.ratios == (0.9, 0.5, 0.99)
    assert result.ratio == 0.9
    assert (result.own, result.peer) == (90.0, 100.0)


def test_the_best_peer_is_the_fastest_with_all_rounds() -> None:
    """A layout eliminated after the first round is not considered."""
    assert best_system(ROUNDS, "load", "llama-server") == "llama-server streams"


def test_without_a_peer_there_is_a_speed_and_no_ratio() -> None:
    """Corral can be measured alone."""
    result = compare([make_measurement(0, "corral", 90.0)], "load", "llama-server", 1.0)

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
def test_a_target_includes_its_bound(ratio: float, bound: str, is_met: bool) -> None:
    """In both directions."""
    result = Result("load", (ratio,), 1.0, 1.0, 1.0, "peer", bound=bound)  # type: ignore[arg-type]  # parametrized

    assert result.is_met is is_met
