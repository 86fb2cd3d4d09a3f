"""Tests of the crash markers across restarts of the frontend."""

from pathlib import Path

from inference_svc.adapter_sync.crash_marker import CrashMarker

GOOD, BAD = "a" * 64, "b" * 64


def open_marker(folder: Path) -> CrashMarker:
    marker = CrashMarker(folder)
    marker.open()
    return marker


def test_a_frontend_that_is_killed_once_blames_no_adapter(tmp_path: Path) -> None:
    """The cause may be unrelated; a later successful load removes the suspicion."""
    for _ in range(2):
        marker = open_marker(tmp_path)
        marker.begin(GOOD)
        marker = open_marker(tmp_path)
        assert not marker.is_blamed(GOOD)
        marker.begin(GOOD)
        marker.end(GOOD)

    assert list(tmp_path.iterdir()) == []


def test_an_adapter_loading_when_two_frontends_end_is_blamed(tmp_path: Path) -> None:
    """Until a retry is requested, which starts the count again."""
    for _ in range(2):
        marker = open_marker(tmp_path)
        marker.begin(GOOD)
        marker.end(GOOD)
        marker.begin(BAD)
    later = open_marker(tmp_path)

    assert (later.is_blamed(GOOD), later.is_blamed(BAD)) == (False, True)
    assert open_marker(tmp_path).is_blamed(BAD)
    later.allow_retry(BAD)
    later.begin(BAD)
    assert not open_marker(tmp_path).is_blamed(BAD)


def test_an_engine_crash_blames_the_adapter_at_once(tmp_path: Path) -> None:
    """The frontend still runs and knows the cause."""
    marker = open_marker(tmp_path)
    marker.begin(BAD)
    marker.blame(BAD)

    assert marker.is_blamed(BAD)


def test_disk_errors_do_not_fail_a_load(tmp_path: Path) -> None:
    """They are logged."""
    (tmp_path / "marks").write_text("no folder")
    marker = open_marker(tmp_path / "marks")
    marker.begin("any")
    marker.end("any")

    assert not marker.is_blamed("any")
