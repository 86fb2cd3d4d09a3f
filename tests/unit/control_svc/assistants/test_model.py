"""Errors in a new thread name the field of the request."""

from typing import Any

import pytest

from control_svc.assistants.message_model import NewMessage
from control_svc.assistants.model import NewThread, ThreadSettings
from control_svc.items.model import Role, Text
from control_svc.tools.model import ToolResources
from control_svc.vector_stores.model import NewVectorStore
from svc_kit.errors import DomainError

LONG = {"key": "x" * 600}
STORES = "tool_resources.file_search.vector_store"
MESSAGE = NewMessage(role=Role.USER, content=(Text(text="Hi"),), metadata=LONG)


@pytest.mark.parametrize("path", ["", "thread."])
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"settings": ThreadSettings(metadata=LONG)}, "metadata.key"),
        (
            {"settings": ThreadSettings(resources=ToolResources(vector_store_ids=("",)))},
            f"{STORES}_ids",
        ),
        ({"messages": (MESSAGE,)}, "messages[0].metadata.key"),
        ({"messages": (MESSAGE,) * 1001}, "messages"),
        ({"new_stores": (NewVectorStore(metadata=LONG),)}, f"{STORES}s[0].metadata.key"),
        ({"new_stores": (NewVectorStore(life_days=0),)}, f"{STORES}s[0].expire_after_days"),
    ],
)
def test_an_error_names_its_field(fields: dict[str, Any], field: str, path: str) -> None:
    """In a request that creates a thread with a run, the path begins with "thread."."""
    with pytest.raises(DomainError) as refused:
        NewThread(**fields).check(path)

    assert vars(refused.value)["field"] == path + field
