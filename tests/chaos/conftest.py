"""Options of the long run: `make chaos ARGS="--rounds 50 --seed 7"`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of rounds and the random seed."""
    group = parser.getgroup("chaos")
    group.addoption("--rounds", type=int, default=10, help="how often everything is started anew")
    group.addoption("--faults", type=int, default=100, help="how many the history has")
    group.addoption("--seed", type=int, default=None, help="which deaths; unset: others each time")
