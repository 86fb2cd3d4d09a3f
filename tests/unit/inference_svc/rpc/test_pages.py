"""Pages of lists in memory."""

from types import SimpleNamespace

import pytest

from inference_svc.rpc.pages import PAGE_TOKENS, page
from svc_kit.errors import InvalidField


def test_pages_continue_after_objects_that_have_gone() -> None:
    """Objects that disappear or appear between two pages neither hide nor repeat others."""
    binding = ("requests", "")
    first = SimpleNamespace(page_size=2, page_token="")
    shown, token = page(binding, {(1.5, "a"): "a", (2.5, "b"): "b", (3.5, "c"): "c"}, first)
    rest = SimpleNamespace(page_size=0, page_token=token)
    changed = {(2.5, "a2"): "a2", (3.5, "c"): "c", (4.5, "d"): "d"}

    assert shown == ["a", "b"]
    assert page(binding, changed, rest) == (["c", "d"], "")


@pytest.mark.parametrize("position", ["x", '["x"]', "null", "[" * 5000])
def test_positions_that_no_page_has_are_refused(position: str) -> None:
    """The key of the tokens is no secret, so a client can sign any position."""
    token = PAGE_TOKENS.make(position, ("requests", ""))

    with pytest.raises(InvalidField, match="page_token"):
        page(("requests", ""), {(1.5, "a"): "a"}, SimpleNamespace(page_size=1, page_token=token))
