"""Tests of the crash markers across restarts of the frontend."""

from pathlib import Path

from inference_svc.adapter_sync.crash_marker import CrashMarker


def open_marker(folder: Path) -> CrashMarker:
    """The crash marker of a frontend that starts."""
    marker = CrashMarker(folder)
    marker.open()
    return marker


def test_a_frontend_that_is_killed_once_blames_no_adapter(tmp_path: Path) -> None:
    """The cause may be unrelated; a later successful load removes the suspicion."""
    for _ in range(2):
        marker = open_marker(tmp_path)
        marker.begin("good")
        marker = open_marker(tmp_path)
        assert not marker.is_blamed("good")
        marker.begin("good")
        marker.end("good")

    assert list(tmp_path.iterdir()) == []


def test_an_adapter_loading_when_two_frontends_end_is_blamed(tmp_path: Path) -> None:
    """Until a retry is requested, which starts the count again."""
    for _ in range(2):
        marker = open_marker(tmp_path)
        marker.begin("good")
        marker.end("good")
        marker.begin("bad")
    later = open_marker(tmp_path)

    assert (later.is_blamed("good"), later.is_blamed("bad")) == (False, True)
    assert open_marker(tmp_path).is_blamed("bad")
    later.allow_retry("bad")
    later.begin("bad")
    assert not open_marker(tmp_path).is_blamed("bad")


def test_an_engine_crash_blames_the_adapter_at_once(tmp_path: Path) -> None:
    """The frontend still runs and knows the cause."""
    marker = open_marker(tmp_path)
    marker.begin("bad")
    marker.blame("bad")

    assert marker.is_blamed("bad")


def test_disk_errors_do_not_fail_a_load(tmp_path: Path) -> None:
    """They are logged."""
    (tmp_path / "marks").write_text("no folder")
    marker = open_marker(tmp_path / "marks")
    marker.begin("any")
    marker.end("any")

    assert not marker.is_blamed("any")
