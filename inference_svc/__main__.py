"""`python -m inference_svc`: serve with the settings of the environment."""

import asyncio
import sys

import uvloop

from inference_svc.app import serve
from inference_svc.config import InferenceSettings
from svc_kit.lifecycle import StartupError
from svc_kit.logs import configure_logging
from svc_kit.settings.groups import load_settings


def main() -> int:
    """Serve until stopped; returns the exit code."""
    try:
        settings = load_settings(InferenceSettings)
        configure_logging("inference", level=settings.log_level)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except StartupError as error:
        sys.stderr.write(f"{error}\n")
        return error.EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
