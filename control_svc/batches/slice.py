"""Builds batches: their service, and one job handler for batches that run lines, one for those that
only close."""

from importlib.metadata import version
from typing import Final

from control_svc.batches.concurrency import AdaptiveConcurrency
from control_svc.batches.executor import BatchRunner
from control_svc.batches.input_file import BatchReader
from control_svc.batches.line_client import LineClient, ResponseRunner
from control_svc.batches.lines import LineLimits, LineRunner
from control_svc.batches.output import BatchWriter
from control_svc.batches.queries import delete_ended_lines
from control_svc.batches.service import CLOSING_KIND, KIND, Batches, expedite_late_batches
from control_svc.batches.worker import BatchHandler, retry_batch
from control_svc.core import Core, Slice
from control_svc.inference.media import FileSource

_CLOSING_AT_ONCE: Final = 2


def build(
    core: Core, contents: FileSource, responses: ResponseRunner, lines: LineRunner | None
) -> Slice:
    """Build the slice.

    `responses` runs lines of /v1/responses; `lines` replaces the inference service.
    """
    bounds = core.settings.batches
    batches = Batches(*core.shared, core.notifications, core.settings.jobs.poll_interval_s)
    lines = lines or LineClient(
        core.inference,
        core.token,
        fingerprint=f"corral-{version('corral')}",
        timeout_s=bounds.line_timeout_s,
        responses=responses,
        files=contents,
    )
    limits = LineLimits(bounds.lines, bounds.line_bytes, bounds.embedding_inputs)
    reader = BatchReader(core.transactions, core.blobs, limits)
    runner = BatchRunner(core.transactions, lines, AdaptiveConcurrency(bounds.lines_at_once))
    writer = BatchWriter(core.transactions, core.blobs, core.ids)
    at_once = {KIND: bounds.batches_at_once, CLOSING_KIND: _CLOSING_AT_ONCE}
    return Slice(
        servicers=[batches],
        handlers=[
            BatchHandler(kind, reader, runner, writer, core.ids, concurrency)
            for kind, concurrency in at_once.items()
        ],
        retries=dict.fromkeys(at_once, retry_batch),
        cleanup=[expedite_late_batches, delete_ended_lines],
    )
