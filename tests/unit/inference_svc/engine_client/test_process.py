"""The environment in which an engine process allocates."""

from inference_svc.engine_client.process import with_tunables

HUGE = "glibc.malloc.hugetlb=1"
LARGE = "glibc.malloc.mmap_threshold=1048576:glibc.malloc.trim_threshold=67108864"


def test_tunables_stand_beside_what_else_is_set() -> None:
    """Other variables, and other tunables, stay as they are."""
    assert with_tunables({"HOME": "/"}) == {"HOME": "/", "GLIBC_TUNABLES": f"{HUGE}:{LARGE}"}

    others = with_tunables({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
    assert others == {"GLIBC_TUNABLES": f"glibc.malloc.arena_max=2:{HUGE}:{LARGE}"}


def test_an_operator_who_chose_is_not_overruled() -> None:
    """The kernel's small pages, say."""
    chosen = with_tunables({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"})

    assert chosen == {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb=0:{LARGE}"}
    assert with_tunables(chosen) == chosen
