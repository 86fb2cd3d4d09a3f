"""Stored events of runs."""

from datetime import UTC, datetime

from control_svc.assistants.model import Thread, ThreadSettings
from control_svc.runs.events import ThreadCreated
from control_svc.runs.queries import RunEventDocuments


def test_the_event_of_a_created_thread_round_trips() -> None:
    """With the settings of the thread, whose type is generic."""
    settings = ThreadSettings(metadata={"a": "b"})
    thread = Thread(id="thread_1", settings=settings, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    event = ThreadCreated(thread=thread)
    documents = RunEventDocuments()

    assert documents.decode(documents.encode(event)) == event
