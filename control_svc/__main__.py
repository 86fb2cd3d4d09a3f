"""`python -m control_svc`: runs the service with the settings of the environment and a file."""

import sys

from control_svc.app import serve
from control_svc.config import ControlSettings
from svc_kit.service_main import main

if __name__ == "__main__":
    sys.exit(main("control", ControlSettings, serve))
