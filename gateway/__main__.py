"""`python -m gateway`: runs the service with the settings of the environment and a file."""

import sys

from gateway.app import serve
from gateway.config import GatewaySettings
from svc_kit.service_main import main

if __name__ == "__main__":
    sys.exit(main("gateway", GatewaySettings, serve))
