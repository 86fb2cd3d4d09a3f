"""`python -m inference_svc`: runs the service with the settings of the environment and a file."""

import sys

from inference_svc.app import serve
from inference_svc.config import InferenceSettings
from svc_kit.service_main import main

if __name__ == "__main__":
    sys.exit(main("inference", InferenceSettings, serve))
