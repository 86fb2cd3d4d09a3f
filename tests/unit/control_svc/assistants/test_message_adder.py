"""Validation of files while messages are added to a thread."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import ORMExecuteState

from control_svc.assistants.message_model import Attachment, NewMessage
from control_svc.assistants.messages import MessageAdder
from control_svc.assistants.model import Thread, ThreadSettings
from control_svc.assistants.queries import ThreadQueries
from control_svc.base.ids import FILE, THREAD, IdSource
from control_svc.db.transaction import Transaction
from control_svc.files.model import File, FilePurpose
from control_svc.files.queries import FileQueries
from control_svc.items.model import Role, Text
from svc_kit.errors import FileNotFound
from tests.support.jobs import open_test_database

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDS = IdSource(lambda: NOW)


async def test_each_file_is_looked_up_once(tmp_path: Path) -> None:
    """A missing file is reported with the first field that refers to it."""
    adder = MessageAdder(IDS, lambda: NOW, None)
    file = File(
        id=IDS.new(FILE),
        filename="a.txt",
        purpose=FilePurpose.ASSISTANTS,
        size_bytes=1,
        sha256="0" * 64,
        blob_key="key",
        created_at=NOW,
        expires_at=None,
    )
    thread = Thread(id=IDS.new(THREAD), settings=ThreadSettings(), created_at=NOW)
    statements: list[str] = []

    def message(file_id: str) -> NewMessage:
        attachments = (Attachment(file_id),) * 100
        return NewMessage(role=Role.USER, content=(Text(text="hi"),), attachments=attachments)

    def record_query(state: ORMExecuteState) -> None:
        if state.is_select:
            statements.append(str(state.statement))

    async def work(tx: Transaction) -> None:
        await FileQueries(tx).add(file)
        await ThreadQueries(tx).add(thread)
        sa.event.listen(tx.session.sync_session, "do_orm_execute", record_query)
        await adder.add(tx, thread, [message(file.id)] * 1000, "messages")
        assert len([text for text in statements if "FROM files" in text]) == 1, statements
        with pytest.raises(FileNotFound) as refused:
            await adder.add(tx, thread, [message("file-b")] * 2, "messages")
        assert refused.value.field == "messages[0].attachments[0].file_id"

    async with open_test_database(tmp_path, None, lambda: NOW) as database:
        await database.transactions.of("p").write(work)
