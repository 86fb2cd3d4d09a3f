"""What the use cases, the workers and the operators of jobs need from the database."""

from datetime import datetime
from typing import Final, NamedTuple

from control_svc.domain.jobs import JobState

JOBS_TOPIC: Final = "jobs"
"""What is announced when a job can be claimed, or is to be cancelled."""


class JobCount(NamedTuple):
    """How many jobs of a kind are in a state, and since when the oldest could have run."""

    kind: str
    state: JobState
    num_jobs: int
    oldest: datetime
