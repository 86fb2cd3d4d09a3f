"""What an engine is loading, as the next frontend sees it."""

from pathlib import Path

from inference_svc.adapter_sync.crash_marker import CrashMarker


def opened(folder: Path) -> CrashMarker:
    """The marks as a frontend that starts sees them."""
    marks = CrashMarker(folder)
    marks.open()
    return marks


def test_a_frontend_that_is_killed_once_blames_nobody(tmp_path: Path) -> None:
    """What ended it may be anything; once it is loaded, no suspicion is left."""
    for _ in range(2):
        marks = opened(tmp_path)
        marks.begin("good")
        marks = opened(tmp_path)
        assert not marks.is_blamed("good")
        marks.begin("good")
        marks.end("good")

    assert list(tmp_path.iterdir()) == []


def test_what_ends_a_frontend_twice_is_to_blame(tmp_path: Path) -> None:
    """It is loaded no third time, until somebody asks; then it counts from the beginning."""
    for _ in range(2):
        marks = opened(tmp_path)
        marks.begin("good")
        marks.end("good")
        marks.begin("bad")
    later = opened(tmp_path)

    assert (later.is_blamed("good"), later.is_blamed("bad")) == (False, True)
    assert opened(tmp_path).is_blamed("bad")
    later.forgive("bad")
    later.begin("bad")
    assert not opened(tmp_path).is_blamed("bad")


def test_an_engine_that_died_blames_at_once(tmp_path: Path) -> None:
    """The frontend lives on and knows."""
    marks = opened(tmp_path)
    marks.begin("bad")
    marks.blame("bad")

    assert marks.is_blamed("bad")


def test_a_disk_that_refuses_is_no_reason_not_to_load(tmp_path: Path) -> None:
    """It is logged; the load goes on."""
    (tmp_path / "marks").write_text("no folder")
    marks = opened(tmp_path / "marks")
    marks.begin("any")
    marks.end("any")

    assert not marks.is_blamed("any")
