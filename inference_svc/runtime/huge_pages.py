"""Huge pages for what the engine process allocates: weights and KV cache.

Every token reads all weights once, and with pages of 4 KiB much of that time goes into finding out
where each page is, most of all on a virtual machine. Where the kernel gives huge pages to those who
ask (`/sys/kernel/mm/transparent_hugepage/enabled` says `madvise`, the usual default), glibc's
malloc asks when it is told to before the process starts:
https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html
"""

from collections.abc import Mapping

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.hugetlb"


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which malloc asks for huge pages, unless the operator has said
    otherwise. Other C libraries do not read it."""
    tunables = environment.get(_VARIABLE, "")
    if _TUNABLE in tunables:
        return dict(environment)
    asked = ":".join(filter(None, (tunables, f"{_TUNABLE}=1")))
    return {**environment, _VARIABLE: asked}
