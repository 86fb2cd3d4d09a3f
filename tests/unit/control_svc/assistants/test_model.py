"""Errors in a new thread name the field of the request."""

import pytest

from control_svc.assistants.model import NewThread, ThreadSettings
from control_svc.tools.model import ToolResources
from svc_kit.errors import MissingField


@pytest.mark.parametrize("path", ["", "thread."])
def test_an_error_names_its_field(path: str) -> None:
    resources = ToolResources(vector_store_ids=("",))
    with pytest.raises(MissingField) as refused:
        NewThread(settings=ThreadSettings(resources=resources)).check(path)

    assert refused.value.field == f"{path}tool_resources.file_search.vector_store_ids"
