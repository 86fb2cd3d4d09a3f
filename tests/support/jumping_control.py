"""The control service with a wall clock that jumps: `python -m tests.support.jumping_control`.

The file clock-offset_s in its working folder has the seconds that are added to the time.
"""

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from control_svc.app import serve
from control_svc.config import ControlSettings
from svc_kit.service_main import main

OFFSET_FILE: Final = "clock-offset_s"


def jumping_clock() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=float(Path(OFFSET_FILE).read_text()))


if __name__ == "__main__":
    sys.exit(main("control", ControlSettings, partial(serve, process_clock=jumping_clock)))
