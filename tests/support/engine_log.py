"""Log messages of the engine about cancellations."""

import re

FREED = r"sequence \d+ \((\w+)\): cancel arrived in step (\d+), slot freed in step (\d+)"


def assert_freed_at_once(match: re.Match[str], phase: str) -> None:
    """Assert that the slot was free at most one step after the cancel, in the given phase."""
    assert match[1] == phase
    assert 0 <= int(match[3]) - int(match[2]) <= 1
