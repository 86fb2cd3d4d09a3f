"""How the engine process allocates: in huge pages, and large blocks by themselves.

Every token reads all weights once, and with pages of 4 KiB much of that time goes into finding out
where each page is, most of all on a virtual machine. Where the kernel gives huge pages to those who
ask (`/sys/kernel/mm/transparent_hugepage/enabled` says `madvise`, the usual default), glibc's
malloc asks when it is told to before the process starts. By itself it also puts ever larger blocks
into the heap, which keeps their room when they are gone.
https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html
"""

from collections.abc import Mapping

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLES = {
    "glibc.malloc.hugetlb": 1,
    "glibc.malloc.mmap_threshold": 1 << 20,  # bytes
    # Without it glibc would give back, and ask for again, what each row's temporaries take.
    "glibc.malloc.trim_threshold": 64 << 20,  # bytes
}


def with_tunables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which malloc does so, but for what the operator has set. Other C
    libraries do not read it."""
    chosen = environment.get(_VARIABLE, "")
    ours = [f"{name}={value}" for name, value in _TUNABLES.items() if name not in chosen]
    return {**environment, _VARIABLE: ":".join(filter(None, (chosen, *ours)))}
