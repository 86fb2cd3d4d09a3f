"""Tests of the malloc tunables of an engine process."""

from inference_svc.engine_client.process import with_malloc_tunables

HUGE = "glibc.malloc.hugetlb=1"
LARGE = "glibc.malloc.mmap_threshold=1048576:glibc.malloc.trim_threshold=67108864"


def test_tunables_are_added_to_the_environment() -> None:
    """Other variables and tunables are kept."""
    assert with_malloc_tunables({"HOME": "/"}) == {"HOME": "/", "GLIBC_TUNABLES": f"{HUGE}:{LARGE}"}

    others = with_malloc_tunables({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
    assert others == {"GLIBC_TUNABLES": f"glibc.malloc.arena_max=2:{HUGE}:{LARGE}"}


def test_a_tunable_set_by_the_operator_is_kept() -> None:
    """For example to disable huge pages."""
    result = with_malloc_tunables({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"})

    assert result == {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb=0:{LARGE}"}
    assert with_malloc_tunables(result) == result
