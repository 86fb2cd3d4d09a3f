"""Tests of the saved desired state."""

from pathlib import Path

import pytest

from inference_svc.adapter_sync.state import DesiredState, frontend_id, load_state, save_state
from tests.support.desired import make_desired


def test_the_last_saved_state_is_loaded(tmp_path: Path) -> None:
    """No other file stays in the folder."""
    state = DesiredState(
        "7", {"a": make_desired("a"), "b": make_desired("b", project="other", attempt=3)}
    )
    save_state(tmp_path / "state.json", DesiredState("6"))
    save_state(tmp_path / "state.json", state)

    assert load_state(tmp_path / "state.json") == state
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"revision": "1"}', '{"revision": "1", "adapters": [{"x": 1}]}']
)
def test_an_unreadable_file_is_an_empty_state(tmp_path: Path, text: str) -> None:
    """The control service then sends everything."""
    (tmp_path / "state.json").write_text(text)

    assert load_state(tmp_path / "state.json") == load_state(tmp_path / "none") == DesiredState()


def test_the_id_of_a_frontend_is_persistent(tmp_path: Path) -> None:
    """Its reports replace those from before a restart."""
    assert frontend_id(tmp_path / "id") == frontend_id(tmp_path / "id") != ""
