"""Pages of lists in memory."""

from types import SimpleNamespace

from inference_svc.rpc.validation import page


def test_pages_continue_after_objects_that_have_gone() -> None:
    """Objects that disappear or appear between two pages neither hide nor repeat others."""
    binding = ("requests", "")
    first = SimpleNamespace(page_size=2, page_token="")
    shown, token = page(binding, {(1.5, "a"): "a", (2.5, "b"): "b", (3.5, "c"): "c"}, first)
    rest = SimpleNamespace(page_size=0, page_token=token)
    changed = {(2.5, "a2"): "a2", (3.5, "c"): "c", (4.5, "d"): "d"}

    assert shown == ["a", "b"]
    assert page(binding, changed, rest) == (["c", "d"], "")
