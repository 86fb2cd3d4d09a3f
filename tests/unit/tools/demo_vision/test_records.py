"""Committed files of the projector compared with their records."""

import re

from tools.demo_model.records import sha256
from tools.demo_vision import card
from tools.demo_vision.pictures import draw_plain
from tools.demo_vision.questions import SKILLS
from tools.demo_vision.records import FOLDER, PROJECTOR, TEXT_MODEL, digests, marks
from tools.demo_vision.sample import SAMPLE, SCENE, png

SIZE_LIMIT = 3_000_000
NUM_ITEMS = 120


def test_the_projector_belongs_to_the_shipped_text_model() -> None:
    """Detects a file that was replaced without its records, and a text model trained anew."""
    assert {path.name: sha256(path) for path in (TEXT_MODEL, PROJECTOR)} == digests()


def test_the_projector_stays_small() -> None:
    """Under 3 MB, because every clone contains it."""
    assert PROJECTOR.stat().st_size < SIZE_LIMIT


def test_every_skill_has_its_marks() -> None:
    """120 pictures for each kind of picture and skill."""
    asked = {f"{kind}/{skill}" for kind, skills in SKILLS.items() for skill in skills}

    assert {skill: len(given) for skill, given in marks().items()} == dict.fromkeys(
        asked, NUM_ITEMS
    )


def test_the_card_has_the_recorded_scores() -> None:
    """Run `python -m tools.demo_vision.card` if this fails."""
    assert card.PAGE.read_text() == card.page()


def test_the_log_is_of_a_complete_run() -> None:
    """Trained to the last step of all stages."""
    log = (FOLDER / "training.txt").read_text()
    done, total = re.findall(r"step (\d+)/(\d+) .*\nwrote projector.pt", log)[-1]

    assert done == total


def test_the_sample_picture_is_what_the_recipe_draws() -> None:
    """Run `python -m tools.demo_vision.sample` if this fails."""
    assert SAMPLE.read_bytes() == png(draw_plain(SCENE))
