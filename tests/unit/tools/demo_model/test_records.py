"""Committed files of the demo model compared with their records."""

import json
import re

import pytest

from tools.demo_model import card
from tools.demo_model.examination import EXAMINATION
from tools.demo_model.records import FOLDER, ROOT, SHIPPED, answers, digests, sha256

SIZE_LIMIT = 10_000_000


def test_the_committed_files_have_their_recorded_digests() -> None:
    """Detects a file that was replaced without its records."""
    assert {path.relative_to(ROOT).as_posix(): sha256(path) for path in SHIPPED} == digests()


def test_the_files_stay_small() -> None:
    """Under 10 MB in total, because every clone contains them."""
    assert sum(path.stat().st_size for path in SHIPPED) < SIZE_LIMIT


def test_every_skill_has_a_score() -> None:
    """100 items for each skill of the examination."""
    assert set(EXAMINATION) < set(answers())
    assert {len(marks) for skill, marks in answers().items() if skill in EXAMINATION} == {100}


def test_the_card_has_the_recorded_scores() -> None:
    """Run `python -m tools.demo_model.card` if this fails."""
    assert card.PAGE.read_text() == card.page()


@pytest.mark.parametrize(
    ("name", "trained"),
    [("training.txt", ("model", "pirate", "robot")), ("training-draft.txt", ("draft",))],
)
def test_the_logs_are_of_complete_runs(name: str, trained: tuple[str, ...]) -> None:
    """The model, both adapters and the draft model were trained to the last step, on the recorded
    corpora."""
    log = (FOLDER / name).read_text()
    ends = re.findall(r"step (\d+)/(\d+) .*\nwrote (\S+)", log)
    sizes = [int(size.replace(",", "")) for size in re.findall(r"steps, ([\d,]+) tokens", log)]
    corpora = [
        json.loads((FOLDER / f"corpus-{name}.json").read_text())["num_tokens"] for name in trained
    ]

    assert len(ends) == len(trained)
    assert all(done == total for done, total, _ in ends)
    assert sizes == pytest.approx(corpora, rel=0.02)
