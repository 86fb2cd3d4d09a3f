"""Trains the projector of the bundled demo model from nothing: `make demo-vision`.

    training of the tower -> training in front of the frozen text model -> GGUF -> examination

The text model's file is read and not changed. A run continues from its last checkpoint in the work
folder. `--trial` runs a few small steps in a temporary folder, and installs nothing.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.demo_model.records import ROOT, score
from tools.demo_vision import card
from tools.demo_vision.evaluate import examine
from tools.demo_vision.records import PROJECTOR, TEXT_MODEL, install

TORCH_PYTHON = ROOT / ".venv-demo-model" / "bin" / "python"
ITEMS = 120
"""Pictures for each skill."""
MAX_LOSS_RATIO = 0.75
"""A trial passes if the captions' last loss is below this fraction of the first one."""


def train(work: Path, threads: int, *flags: str) -> Path:
    """Train and export in the work folder. Returns the GGUF file."""
    out = work / PROJECTOR.name
    paths = [f"--model={TEXT_MODEL}", f"--work={work}", f"--out={out}", f"--threads={threads}"]
    command: list[str | Path] = [TORCH_PYTHON, "-m", "tools.demo_vision.stages", *paths, *flags]
    subprocess.run(command, cwd=ROOT, check=True)
    return out


def trial(threads: int) -> int:
    """Train a little, and ask the result something in llama.cpp. Returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        projector = train(Path(folder), threads, "--trial")
        log = (Path(folder) / "training.txt").read_text()
        losses = [float(loss) for loss in re.findall(r"caption ([\d.]+)", log)]
        examine(TEXT_MODEL, projector, 1)
    learned = losses[-1] < MAX_LOSS_RATIO * losses[0]
    print(f"trial: caption loss from {losses[0]:.2f} to {losses[-1]:.2f}")
    return 0 if learned else 1


def main() -> int:
    """Parse the command line, train and examine. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Train the projector of the demo model.")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "demo-vision")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trial", action="store_true", help="a few steps; install nothing")
    options = parser.parse_args()
    if options.trial:
        return trial(options.threads)
    projector = train(options.work, options.threads)
    marks = examine(TEXT_MODEL, projector, ITEMS)
    (options.work / "marks.json").write_text(json.dumps(marks, indent=1) + "\n")
    install(options.work)
    card.write()
    for skill, given in marks.items():
        print(f"{skill:20} {score(given):5.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
