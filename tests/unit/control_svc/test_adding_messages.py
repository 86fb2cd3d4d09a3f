"""Messages into threads: what is looked up before they are kept."""

from datetime import UTC, datetime
from typing import cast
from unittest.mock import AsyncMock, MagicMock

import pytest

from control_svc.domain.ids import IdSource
from control_svc.domain.items import Role, Text
from control_svc.domain.messages import Attachment, NewMessage
from control_svc.domain.ports import Repositories
from control_svc.domain.threads import Thread
from control_svc.usecases.adding_messages import MessageAdder
from svc_kit.errors import FileNotFound

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_file_is_looked_up_once_however_often_it_is_named() -> None:
    """And a file that is not there is told with the first field that names it."""
    adder = MessageAdder(IdSource(lambda: NOW), lambda: NOW, None)
    message = NewMessage(
        role=Role.USER, content=(Text(text="hi"),), attachments=(Attachment("file-a"),) * 100
    )
    repositories = MagicMock(messages=MagicMock(add=AsyncMock()), files=MagicMock(get=AsyncMock()))
    thread = Thread(id="thread_a", settings=MagicMock(), created_at=NOW)

    await adder.add(cast("Repositories", repositories), "p", thread, [message] * 1000, "messages")
    assert repositories.files.get.await_count == 1

    repositories.files.get.side_effect = FileNotFound(file="file-a")
    with pytest.raises(FileNotFound) as refused:
        await adder.add(cast("Repositories", repositories), "p", thread, [message] * 2, "messages")
    assert refused.value.field == "messages[0].attachments[0].file_id"
