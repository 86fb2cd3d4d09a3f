"""The number of examples of property tests: few in `make test`, many more in `make properties`."""

import os
from typing import Final

TIMES: Final = int(os.environ.get("CORRAL_TEST_EXAMPLES", "1"))


def examples(count: int) -> int:
    """Return `max_examples` for Hypothesis: `count`, multiplied in `make properties`."""
    return count * TIMES
