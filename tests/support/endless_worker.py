"""`python -m tests.support.endless_worker`: a control service that also runs jobs that never end.

It logs each attempt, and runs until it is killed.
"""

import asyncio
import logging

from control_svc.app import build
from control_svc.config import ControlSettings
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim
from svc_kit.lifecycle import stop_on_signals
from svc_kit.logs import configure_logging
from svc_kit.settings.groups import load_settings
from tests.support.jobs import Handler

log = logging.getLogger(__name__)


async def log_and_wait(claim: Claim, _context: JobContext) -> None:
    """Log the attempt; never return."""
    log.info("attempt %d of %s", claim.attempt, claim.job_id)
    await asyncio.Event().wait()


async def main() -> None:
    """Serve until SIGTERM."""
    stopping = stop_on_signals()
    async with build(load_settings(ControlSettings), handlers=[Handler(log_and_wait)]):
        log.info("working")
        await stopping.wait()


if __name__ == "__main__":
    configure_logging("control", json=True)
    asyncio.run(main())
