"""What is committed of the demo model is what its records say."""

import json
import re

import pytest

from tools.demo_model import card
from tools.demo_model.examination import EXAMINATION
from tools.demo_model.records import FOLDER, ROOT, SHIPPED, answers, digests, sha256

SIZE_LIMIT = 10_000_000


def test_the_committed_files_have_their_recorded_digests() -> None:
    """A file that is replaced without its records, or half committed, is noticed."""
    assert {path.relative_to(ROOT).as_posix(): sha256(path) for path in SHIPPED} == digests()


def test_the_files_stay_small() -> None:
    """Under 10 MB in all: they are in every clone."""
    assert sum(path.stat().st_size for path in SHIPPED) < SIZE_LIMIT


def test_every_skill_has_a_score() -> None:
    """The records are of this examination."""
    assert set(EXAMINATION) < set(answers())
    assert {len(marks) for skill, marks in answers().items() if skill in EXAMINATION} == {100}


def test_the_card_has_the_recorded_scores() -> None:
    """`python -m tools.demo_model.card` was run after the last run."""
    assert card.PAGE.read_text() == card.page()


def test_the_log_is_of_the_whole_run() -> None:
    """The training and both adapters go to their last steps, on the recorded corpora."""
    log = (FOLDER / "training.txt").read_text()
    ends = re.findall(r"step (\d+)/(\d+) .*\nwrote (\S+)", log)
    sizes = [int(size.replace(",", "")) for size in re.findall(r"steps, ([\d,]+) tokens", log)]
    corpora = [
        json.loads((FOLDER / f"corpus-{name}.json").read_text())["num_tokens"]
        for name in ("model", "pirate", "robot")
    ]

    assert len(ends) == 3
    assert all(done == total for done, total, _ in ends)
    assert sizes == pytest.approx(corpora, rel=0.02)
