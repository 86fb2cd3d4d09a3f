"""`python -m tests.support.talking_worker FOLDER [URL]`: writes to the next job's stream forever.

The data of each event is a token id. It logs "talking" when some are committed, and runs until it
is killed.
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

_EVENTS_PER_COMMIT = 10
_LOGGED_EVENT = 50


async def main(folder: Path, url: str | None) -> None:
    """Write until killed."""
    async with (
        open_database(url, folder) as database,
        make_process(database, "talking").run() as process,
    ):
        context = await claim(process)
        async with process.committer.writer(context, context.claim.subject) as writer:
            for number in count():
                await writer.add([b"%d" % number], [number])
                if number % _EVENTS_PER_COMMIT == 0:
                    await writer.flush()
                if number == _LOGGED_EVENT:
                    log.info("talking")


if __name__ == "__main__":
    configure_logging("control", json=True)
    asyncio.run(main(Path(sys.argv[1]), next(iter(sys.argv[2:]), None)))
