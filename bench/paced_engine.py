"""The inference service with engines whose steps take at least STEP_S seconds.

A small model then sends its tokens as slowly as a large one, so that each is a message of its own
even if other processes are busy.

    python -m bench.paced_engine
"""

import os
import sys
import time
from typing import Final

from bench.paths import REPOSITORY
from inference_svc.app import serve
from inference_svc.config import InferenceSettings
from inference_svc.engine_client import local_engine
from inference_svc.engine_process import main as engine
from inference_svc.engine_process.step_loop import StepLoop
from svc_kit.service_main import main as run_service

STEP_S: Final = 0.025


class _PacedStepLoop(StepLoop):
    """Steps that take at least STEP_S seconds."""

    def run_turn(self) -> None:
        """Run a step, then wait for the rest of its time."""
        ends_at = time.monotonic() + STEP_S
        super().run_turn()
        time.sleep(max(0.0, ends_at - time.monotonic()))


def main() -> int:
    """Run the service, or with a file descriptor as the argument one of its engine processes."""
    if len(sys.argv) > 1:
        engine.StepLoop = _PacedStepLoop  # type: ignore[attr-defined]
        engine.main(int(sys.argv[1]))
        return 0
    local_engine._ENGINE = "bench.paced_engine"
    paths = (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return run_service("inference", InferenceSettings, serve)


if __name__ == "__main__":
    sys.exit(main())
