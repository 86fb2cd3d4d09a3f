"""The control groups that this process is in: what a container is limited by.

https://docs.kernel.org/admin-guide/cgroup-v2.html; version 1 has a tree for every controller.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")


class ControlGroup(NamedTuple):
    """The folder of a group, and the version, 1 or 2, that says what its files are called."""

    folder: Path
    version: int


def enclosing_groups(controller: str, proc: Path, groups: Path) -> Iterator[ControlGroup]:
    """Yield the groups that limit this process by a controller ("memory", "cpu"), inner ones before
    those around them. Not all of them need to be visible from inside a container."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            root, version = groups, 2
        elif controller in controllers.split(","):
            root, version = groups / controller, 1
        else:
            continue
        group = root / path.lstrip("/")
        while True:
            yield ControlGroup(group, version)
            if group == root or root not in group.parents:
                break
            group = group.parent
