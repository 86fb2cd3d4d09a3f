"""The wanted state in its file."""

from pathlib import Path

import pytest

from inference_svc.adapter_sync.state import DesiredState, frontend_id, load_state, save_state
from tests.support.desired import wanted


def test_a_state_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    """The last one; nothing else stays in the folder."""
    state = DesiredState("7", {"a": wanted("a"), "b": wanted("b", project="other", attempt=3)})
    save_state(tmp_path / "state.json", DesiredState("6"))
    save_state(tmp_path / "state.json", state)

    assert load_state(tmp_path / "state.json") == state
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"revision": "1"}', '{"revision": "1", "adapters": [{"x": 1}]}']
)
def test_what_cannot_be_read_is_an_empty_state(tmp_path: Path, text: str) -> None:
    """Control sends everything then."""
    (tmp_path / "state.json").write_text(text)

    assert load_state(tmp_path / "state.json") == load_state(tmp_path / "none") == DesiredState()


def test_a_frontend_keeps_its_id(tmp_path: Path) -> None:
    """Its reports replace those of before its restart."""
    assert frontend_id(tmp_path / "id") == frontend_id(tmp_path / "id") != ""
