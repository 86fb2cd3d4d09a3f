"""`python -m control_svc`: serve with the settings of the environment."""

import asyncio
import sys

import uvloop

from control_svc.app import serve
from control_svc.config import ControlSettings
from svc_kit.lifecycle import StartupError
from svc_kit.logs import configure_logging
from svc_kit.settings.groups import load_settings


def main() -> int:
    """Serve until stopped; return the exit code."""
    try:
        settings = load_settings(ControlSettings)
        configure_logging("control", level=settings.log_level)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except StartupError as error:
        sys.stderr.write(f"{error}\n")
        return error.EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
