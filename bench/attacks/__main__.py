"""`python -m bench.attacks NAME HTTP GRPC KEY` attacks until it is killed; prints a line first."""

import asyncio
import os
import sys
from functools import partial
from typing import Final

import uvloop

from bench.attacks import ATTACKS
from bench.attacks.attack import Target, carry_out

LEAST_PRIORITY: Final = 19
"""Other machines would not take processor time from the server."""

if __name__ == "__main__":
    name, *addresses = sys.argv[1:]
    os.nice(LEAST_PRIORITY)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        begun = partial(print, "attacking", flush=True)
        runner.run(carry_out(ATTACKS[name], Target(*addresses), begun))
