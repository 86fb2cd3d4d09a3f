"""The engine's own account of cancels: in which step one arrived, in which the slot was free."""

import re

FREED = r"sequence \d+ \((\w+)\): cancel arrived in step (\d+), slot freed in step (\d+)"


def assert_freed_at_once(match: re.Match[str], phase: str) -> None:
    """At the latest one step after the cancel, and in the phase that was meant."""
    assert match[1] == phase
    assert 0 <= int(match[3]) - int(match[2]) <= 1
