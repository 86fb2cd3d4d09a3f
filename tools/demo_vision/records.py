"""Committed results of a run: the projector, its marks and the log."""

import json
import shutil
from pathlib import Path

from tools.demo_model.records import BUNDLED, MODEL, sha256
from tools.demo_vision.examination import Marks

FOLDER = Path(__file__).with_name("records")
TEXT_MODEL = BUNDLED / MODEL
PROJECTOR = BUNDLED / "demo-vision-mmproj-q8_0.gguf"


def install(work: Path) -> None:
    """Copy the projector and the records of a finished run into the repository."""
    FOLDER.mkdir(exist_ok=True)
    shutil.copyfile(work / PROJECTOR.name, PROJECTOR)
    for name in ("marks.json", "training.txt"):
        shutil.copyfile(work / name, FOLDER / name)
    digests = {path.name: sha256(path) for path in (TEXT_MODEL, PROJECTOR)}
    (FOLDER / "digests.json").write_text(json.dumps(digests, indent=1) + "\n")


def digests() -> dict[str, str]:
    """Recorded digests of the projector and of the text model that it was trained for."""
    by_name: dict[str, str] = json.loads((FOLDER / "digests.json").read_text())
    return by_name


def marks() -> Marks:
    """Recorded marks of the examination."""
    by_skill: Marks = json.loads((FOLDER / "marks.json").read_text())
    return by_skill
