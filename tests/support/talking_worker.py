"""`python -m tests.support.talking_worker FOLDER [URL]`: writes the next job's stream for ever.

Each event is a token. It says when some of them are committed, and is there to be killed.
"""

import asyncio
import logging
import sys
from itertools import count
from pathlib import Path

from control_svc.db.engine import open_database
from svc_kit.logs import configure_logging
from tests.support.streams import claim, make_process

log = logging.getLogger(__name__)

_EVENTS_A_COMMIT = 10
_ENOUGH = 50


async def main(folder: Path, url: str | None) -> None:
    """Talk until killed."""
    async with (
        open_database(url, folder) as database,
        make_process(database, "talking").running() as process,
    ):
        context = await claim(process)
        async with process.committer.writer(context, context.claim.subject) as writer:
            for number in count():
                await writer.add([b"%d" % number], [number])
                if number % _EVENTS_A_COMMIT == 0:
                    await writer.flush()
                if number == _ENOUGH:
                    log.info("talking")


if __name__ == "__main__":
    configure_logging("control", json=True)
    asyncio.run(main(Path(sys.argv[1]), next(iter(sys.argv[2:]), None)))
