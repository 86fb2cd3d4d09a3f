"""The sandbox job that extracts the text of a document, and its problems in words."""

from typing import Final

from svc_kit.sandbox.jobs import MIB, FailureKind, Job, JobFailed

READ_TEXT: Final = Job(
    "svc_kit.documents.text_extraction",
    "read_text",
    deadline_s=60.0,
    memory_bytes=512 * MIB,
    output_bytes=96 * MIB,
)
"""A page of PDF may take seconds and much memory."""
_PROBLEMS: Final = {
    FailureKind.DEADLINE: "reading it takes too long",
    FailureKind.MEMORY: "reading it takes too much memory",
    FailureKind.OUTPUT: "it has too much content",
    FailureKind.CRASHED: "it cannot be read",
}


def describe_failure(failed: JobFailed) -> str:
    """Say why a document has no text, as the end of a sentence about it."""
    return _PROBLEMS.get(failed.kind, failed.problem)
