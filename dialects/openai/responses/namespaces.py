"""Tools in namespaces, and tools of other servers.

Elsewhere a tool in a namespace is a function named "namespace.name". No other name has dots.
"""

from typing import Final

SEPARATOR: Final = "."
HOSTED_TOOLS: Final = (
    *("apply_patch", "code_interpreter", "computer", "image_generation", "local_shell"),
    *("programmatic", "shell", "tool_search", "web_search"),
)
"""First words of the types of tools that only other servers have, and of their calls. Clients offer
some unasked, and those that change servers send calls back."""


def flat_name(namespace: str | None, name: str) -> str:
    """The name of a tool elsewhere."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def local_name(flat: str) -> str:
    """The name of a tool in its namespace, if it has one."""
    return _split(flat)[1]


def namespace_of(flat: str) -> str | None:
    """The namespace of a tool, if it has one."""
    return _split(flat)[0] or None


def _split(flat: str) -> tuple[str, str]:
    namespace, _, name = flat.rpartition(SEPARATOR)
    return (namespace, name) if namespace and name else ("", flat)
