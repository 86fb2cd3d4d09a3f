"""The job that gets text out of a file, and what it may use."""

from typing import Final

from svc_kit.sandbox.jobs import MIB, Job

READ_TEXT: Final = Job(
    "control_svc.documents.reading",
    "read_text",
    deadline_s=60.0,
    memory_bytes=512 * MIB,
    output_bytes=96 * MIB,
)
"""A page of PDF may take seconds and much memory; a bomb takes no more than this."""
