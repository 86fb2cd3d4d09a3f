"""`python -m gateway`: runs a gateway. Settings come from the environment and a TOML file."""

import asyncio
import sys
from pathlib import Path

import uvloop

from gateway.app import serve
from gateway.config import GatewaySettings
from svc_kit.lifecycle import StartupError
from svc_kit.logs import configure_logging
from svc_kit.settings.groups import load_settings


def main(arguments: list[str]) -> int:
    """Run until stopped. The optional argument is the path of a TOML file."""
    configure_logging("gateway")
    try:
        settings = load_settings(GatewaySettings, toml=Path(arguments[0]) if arguments else None)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except StartupError as error:
        sys.stderr.write(f"{error}\n")
        return error.EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
