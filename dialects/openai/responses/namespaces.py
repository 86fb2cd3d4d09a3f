"""Tools in namespaces, and tools of other servers.

Elsewhere a tool in a namespace is a function named "namespace.name". No other name has dots.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from dialects.openai.shared.objects import Json

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


def split_name(flat: str) -> Json:
    """The `name` of a tool, and its `namespace` if it has one."""
    namespace, _, name = flat.rpartition(SEPARATOR)
    return {"name": name, "namespace": namespace} if namespace and name else {"name": flat}


def group_tools(tools: Sequence[Json]) -> list[Json]:
    """Tools as clients send them: neighbours of one namespace are one tool."""
    grouped: list[Json] = []
    for namespace, members in groupby(tools, key=_namespace):
        if namespace:
            inner = [{**tool, "name": split_name(tool["name"])["name"]} for tool in members]
            grouped.append(
                {"type": "namespace", "name": namespace, "description": "", "tools": inner}
            )
        else:
            grouped += members
    return grouped


def _namespace(tool: Json) -> str:
    return str(split_name(tool.get("name", "")).get("namespace", ""))
