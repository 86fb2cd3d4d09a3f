"""Trains and exports; runs in `.venv-demo-model`, which has torch.

`python -m tools.demo_vision.stages` is started by `tools.demo_vision`.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch

from tools.demo_vision.export import export
from tools.demo_vision.training import Run, Settings

TRIAL_STEPS = (60, 2, 2, 2, 2)
"""Steps of the stages in a trial, which shows that everything works and teaches little."""


def main() -> None:
    """Train in a work folder from its last checkpoint, unless it is finished, then export."""
    parser = argparse.ArgumentParser(description="Train and export the projector.")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file of the text model")
    parser.add_argument("--work", type=Path, required=True, help="folder of the results")
    parser.add_argument("--out", type=Path, required=True, help="GGUF file to write")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trial", action="store_true", help="a few small steps")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    checkpoint = options.work / "projector.pt"
    settings = Settings(options.model, checkpoint, options.work / "training.txt")
    if options.trial:
        stages = [
            dataclasses.replace(stage, steps=steps, pictures=32, asked=min(stage.asked, 8))
            for stage, steps in zip(settings.stages, TRIAL_STEPS, strict=True)
        ]
        settings = dataclasses.replace(settings, stages=tuple(stages), compiled=False)
    Run(settings).run()
    export(checkpoint, options.out, "Q8_0")


if __name__ == "__main__":
    main()
