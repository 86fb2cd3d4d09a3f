"""Events of runs as documents."""

from datetime import UTC, datetime

from control_svc.assistants.model import Thread, ThreadSettings
from control_svc.runs.events import ThreadCreated
from control_svc.runs.queries import RunEventDocuments


def test_a_thread_that_was_made_with_its_run_comes_back_as_it_was() -> None:
    """With its settings, which are no plain fields."""
    settings = ThreadSettings(metadata={"a": "b"})
    thread = Thread(id="thread_1", settings=settings, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    event = ThreadCreated(thread=thread)
    documents = RunEventDocuments()

    assert documents.decode(documents.encode(event)) == event
