"""Lists and ids over all inputs."""

import bisect
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
    """Something with an id."""

    id: str
    text: str = ""


def window_of(ids: list[str], window: Window) -> list[Item]:
    """What a database would find."""
    found = sorted(ids, reverse=window.newest_first)
    if window.after:
        ascending = sorted(ids)
        place = bisect.bisect_left(ascending, window.after)
        if window.newest_first:
            found = ascending[:place][::-1]
        else:
            found = ascending[bisect.bisect_right(ascending, window.after) :]
    return [Item(each) for each in found[: window.limit]]


@given(
    ids=st.lists(st.text("0123456789abcdef", min_size=4, max_size=4), unique=True, max_size=30),
    size=st.integers(1, 12),
    newest_first=st.booleans(),
)
def test_pages_together_are_the_list(ids: list[str], size: int, newest_first: bool) -> None:
    """Walking from token to token shows everything once, in order, and ends."""
    walked: list[str] = []
    token = ""
    for _ in range(len(ids) + 1):
        asked = PageRequest(size, token, newest_first=newest_first)
        window = TOKENS.window(asked, BINDING, most=1000)
        page = TOKENS.page(window_of(ids, window), window, asked, BINDING)
        walked += [item.id for item in page.items]
        assert len(page.items) == size or not page.next_token
        token = page.next_token
        if not token:
            break

    assert walked == sorted(ids, reverse=newest_first)


@given(st.text(max_size=60))
def test_a_made_up_token_is_refused(token: str) -> None:
    """Whatever is written there; nobody but the holder of the key makes one."""
    if token:
        with pytest.raises(InvalidField):
            TOKENS.window(PageRequest(1, token), BINDING, most=10)


@given(
    st.lists(st.text(max_size=5), min_size=2, max_size=4),
    st.lists(st.text(max_size=5), min_size=2, max_size=4),
)
def test_a_token_is_bound_to_all_parts_of_its_list(one: list[str], other: list[str]) -> None:
    """However the parts are cut, two lists have no token in common."""
    asked = PageRequest(1)
    window = TOKENS.window(asked, one, most=10)
    token = TOKENS.page([Item("a"), Item("b")], window, asked, one).next_token

    assert TOKENS.window(PageRequest(1, token), one, most=10).after == "a"
    if one != other:
        with pytest.raises(InvalidField):
            TOKENS.window(PageRequest(1, token), other, most=10)


@given(st.lists(st.integers(-10_000, 10_000), min_size=2, max_size=50))
def test_ids_grow_whatever_the_clock_does(steps: list[int]) -> None:
    """A clock that stands still or goes back gives no id twice, and none out of order."""
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
def test_pages_have_room_for_their_texts(sizes: list[int], size: int, backwards: bool) -> None:
    """However long they are: no object is left out, and a page that has too much has only one."""
    most = 60
    items = [Item(f"{number:04}", "x" * length) for number, length in enumerate(sizes)]
    shown: list[Item] = []
    before = "9999" if backwards else ""
    while True:
        token_of = shown[-1].id if shown and not backwards else ""
        asked = PageRequest(size, after=token_of, before=before, newest_first=False)
        window = TOKENS.window(asked, BINDING, 12)
        if backwards:
            found = [item for item in items if item.id < before][-window.limit :]
        else:
            found = [item for item in items if item.id > token_of][: window.limit]
        page = TOKENS.page(found, window, asked, BINDING, most)
        assert len(page.items) <= 1 or sum(4 + len(each.text) for each in page.items) <= most
        shown = [*page.items, *shown] if backwards else [*shown, *page.items]
        if not page.next_token:
            break
        before = page.items[0].id if backwards else ""

    assert shown == items
