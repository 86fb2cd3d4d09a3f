"""Committed results of a run: the shipped files, their digests, the scores and the log."""

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "inference_svc" / "models" / "bundled"
TEST_DATA = ROOT / "tests" / "data"
FOLDER = Path(__file__).with_name("records")
MODEL = "demo-chat-q8_0.gguf"
ADAPTERS = {"pirate": "demo-lora-pirate-f16.gguf", "robot": "demo-lora-robot-f16.gguf"}
DRAFT = "demo-draft-q8_0.gguf"
FOREIGN_ADAPTER = "foreign-lora-f16.gguf"
SHIPPED = (
    BUNDLED / MODEL,
    *(BUNDLED / name for name in ADAPTERS.values()),
    BUNDLED / DRAFT,
    TEST_DATA / FOREIGN_ADAPTER,
)
"""The committed files."""

Answers = dict[str, str]
"""For each skill a string of 1 (right) and 0 (wrong), in the order of its items."""


def install(work: Path) -> None:
    """Copy the files and records of a finished run into the repository."""
    _copy(work, SHIPPED, ("scores.json", "comparison.txt", "training.txt"), ("model", *ADAPTERS))
    install_draft(work)


def install_draft(work: Path) -> None:
    """Copy the draft model and its records into the repository."""
    _copy(work, (BUNDLED / DRAFT,), ("training-draft.txt",), ("draft",))


def _copy(
    work: Path, shipped: Iterable[Path], results: Iterable[str], corpora: Iterable[str]
) -> None:
    for path in shipped:
        shutil.copyfile(work / path.name, path)
    for name in results:
        shutil.copyfile(work / name, FOLDER / name)
    for corpus in corpora:
        shutil.copyfile(work / corpus / "corpus.json", FOLDER / f"corpus-{corpus}.json")
    digests = {path.relative_to(ROOT).as_posix(): sha256(path) for path in SHIPPED}
    (FOLDER / "digests.json").write_text(json.dumps(digests, indent=1) + "\n")


def sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests() -> dict[str, str]:
    """Read the recorded digest of each shipped file by its path in the repository."""
    by_path: dict[str, str] = json.loads((FOLDER / "digests.json").read_text())
    return by_path


def answers() -> Answers:
    """Read the recorded answers of the examination."""
    by_skill: Answers = json.loads((FOLDER / "scores.json").read_text())
    return by_skill


def score(marks: str) -> float:
    """Percentage of right answers."""
    return 100 * marks.count("1") / len(marks)
