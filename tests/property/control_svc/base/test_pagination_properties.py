"""Pagination and ids."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_svc.base.ids import FILE, IdSource, is_id
from control_svc.base.pagination import PageRequest, PageTokens, Window
from svc_kit.errors import InvalidField

TOKENS = PageTokens(b"key")
BINDING = ("project", "files", "")


class Item(NamedTuple):
    id: str
    text: str = ""


def read_window(ids: list[str], window: Window) -> list[Item]:
    ordered = sorted(ids, reverse=window.newest_first)
    if window.after:
        ordered = [each for each in ordered if (each < window.after) == window.newest_first]
        ordered = [each for each in ordered if each != window.after]
    return [Item(each) for each in ordered[: window.limit]]


@given(
    ids=st.lists(st.text("0123456789abcdef", min_size=4, max_size=4), unique=True, max_size=30),
    size=st.integers(1, 12),
    newest_first=st.booleans(),
)
def test_the_pages_of_a_list_contain_all_items(
    ids: list[str], size: int, newest_first: bool
) -> None:
    """Following the tokens returns each item once, in order, and ends."""
    listed: list[str] = []
    token = ""
    for _ in range(len(ids) + 1):
        page_request = PageRequest(size, token, newest_first=newest_first)
        window = TOKENS.window(page_request, BINDING, max_size=1000)
        page = window.page(read_window(ids, window))
        listed += [item.id for item in page.items]
        assert len(page.items) == size or not page.next_token
        token = page.next_token
        if not token:
            break

    assert listed == sorted(ids, reverse=newest_first)


@given(st.text(max_size=60))
def test_a_forged_token_is_refused(token: str) -> None:
    """Only the holder of the key can create one."""
    if token:
        with pytest.raises(InvalidField):
            TOKENS.window(PageRequest(1, token), BINDING, max_size=10)


@given(
    st.lists(st.text(max_size=5), min_size=2, max_size=4),
    st.lists(st.text(max_size=5), min_size=2, max_size=4),
)
def test_a_token_is_bound_to_all_parts_of_its_list(one: list[str], other: list[str]) -> None:
    """However the parts are split, two lists share no token."""
    window = TOKENS.window(PageRequest(1), one, max_size=10)
    token = window.page([Item("a"), Item("b")]).next_token

    assert TOKENS.window(PageRequest(1, token), one, max_size=10).after == "a"
    if one != other:
        with pytest.raises(InvalidField):
            TOKENS.window(PageRequest(1, token), other, max_size=10)


@given(st.lists(st.integers(-10_000, 10_000), min_size=2, max_size=50))
def test_ids_increase_even_if_the_clock_does_not(steps: list[int]) -> None:
    """With a clock that stands still or goes back, ids are unique and in order."""
    now = datetime(2026, 11, 22, tzinfo=UTC)
    times = iter(now + timedelta(microseconds=step) for step in steps)
    source = IdSource(lambda: next(times))

    ids = [source.new(FILE) for _ in steps]

    assert ids == sorted(set(ids))
    assert all(is_id(each, FILE) for each in ids)


@given(
    sizes=st.lists(st.integers(0, 50), max_size=30),
    size=st.integers(1, 12),
    backwards=st.booleans(),
)
def test_the_texts_of_a_page_are_limited(sizes: list[int], size: int, backwards: bool) -> None:
    """No item is lost, and only a page with one item exceeds the limit."""
    max_bytes = 60
    items = [Item(f"{number:04}", "x" * length) for number, length in enumerate(sizes)]
    listed: list[Item] = []
    before = "9999" if backwards else ""
    while True:
        after = listed[-1].id if listed and not backwards else ""
        page_request = PageRequest(size, after=after, before=before, newest_first=False)
        window = TOKENS.window(page_request, BINDING, 12)
        if backwards:
            rows = [item for item in items if item.id < before][-window.limit :]
        else:
            rows = [item for item in items if item.id > after][: window.limit]
        page = window.page(rows, max_bytes)
        assert len(page.items) <= 1 or sum(4 + len(each.text) for each in page.items) <= max_bytes
        listed = [*page.items, *listed] if backwards else [*listed, *page.items]
        if not page.next_token:
            break
        before = page.items[0].id if backwards else ""

    assert listed == items
