"""The tables of runs and their steps."""

from sqlalchemy import ForeignKeyConstraint, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Key, Project, Table


class RunRow(Table):
    """A run. Its state is a column for operators; the document has it too."""

    __tablename__ = "runs"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "thread_id"], ["threads.project", "threads.id"], ondelete="CASCADE"
        ),
        Index(None, "project", "thread_id", "id"),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    thread_id: Mapped[str] = mapped_column(Key)
    state: Mapped[str] = mapped_column(String(16))
    settings: Mapped[bytes] = mapped_column(LargeBinary)  # written once, they may be large
    document: Mapped[bytes] = mapped_column(LargeBinary)


class RunStepRow(Table):
    """A step of a run."""

    __tablename__ = "run_steps"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "run_id"], ["runs.project", "runs.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    run_id: Mapped[str] = mapped_column(Key, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    document: Mapped[bytes] = mapped_column(LargeBinary)
