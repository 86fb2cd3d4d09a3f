"""The environment in which an engine process allocates."""

from inference_svc.runtime.huge_pages import with_huge_pages

ASKED = "glibc.malloc.hugetlb=1"


def test_huge_pages_are_asked_for_beside_what_else_is_set() -> None:
    """Other variables, and other tunables, stay as they are."""
    assert with_huge_pages({"HOME": "/"}) == {"HOME": "/", "GLIBC_TUNABLES": ASKED}

    others = with_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
    assert others == {"GLIBC_TUNABLES": f"glibc.malloc.arena_max=2:{ASKED}"}


def test_an_operator_who_chose_is_not_overruled() -> None:
    """The kernel's small pages, say."""
    chosen = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}

    assert with_huge_pages(chosen) == chosen
