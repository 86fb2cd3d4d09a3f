"""How many examples a property test tries: few with every change, many times as many by
`make properties`, which finds what one history in a thousand meets.
"""

import os
from typing import Final

TIMES: Final = int(os.environ.get("CORRAL_TEST_EXAMPLES", "1"))


def examples(count: int) -> int:
    """So many with every change, as a number for Hypothesis' settings."""
    return count * TIMES
