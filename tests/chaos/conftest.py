"""Options of the long form: `make chaos ARGS="--rounds 50 --seed 7"`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long, and which history."""
    group = parser.getgroup("chaos")
    group.addoption("--rounds", type=int, default=10, help="how often everything is started anew")
    group.addoption("--seed", type=int, default=None, help="which deaths; unset: others each time")
