"""What is in a folder, to compare it before and after."""

from pathlib import Path


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """The content of each file, the target of each link, and None for each folder, by path."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_dir():
            found[name] = None
        else:
            found[name] = path.read_bytes()
    return found
