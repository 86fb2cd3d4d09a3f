"""Batches: what callers do with them, and what carries them out."""

from importlib.metadata import version
from typing import Final

from corral.control.v1 import batch_service_pb2_grpc

from control_svc.api.batch_service import BatchServicer
from control_svc.assembly.ground import Ground
from control_svc.clients.line_client import LineClient, Responses
from control_svc.domain.batch_lines import LineLimits
from control_svc.usecases.batch_places import Places
from control_svc.usecases.batch_reading import BatchReader
from control_svc.usecases.batch_running import BatchRunner
from control_svc.usecases.batch_work import BatchHandler
from control_svc.usecases.batch_writing import BatchWriter
from control_svc.usecases.batches import CLOSING_KIND, KIND, Batches
from svc_kit.rpc_server import Service

_CLOSING_AT_ONCE: Final = 2


def batch_service(ground: Ground) -> Service:
    """What callers do with batches."""
    batches = Batches(
        ground.transactions,
        ground.notices,
        ground.ids,
        ground.tokens,
        ground.settings.jobs.poll_interval_s,
    )
    return Service(
        batch_service_pb2_grpc.add_BatchServiceServicer_to_server,
        BatchServicer(batches),
        "corral.control.v1.BatchService",
    )


def batch_handlers(ground: Ground, responses: Responses) -> list[BatchHandler]:
    """What does the jobs of batches: of those that run lines, and of those that run no more.

    `responses` answers lines of that endpoint.
    """
    bounds = ground.settings.batches
    lines = LineClient(
        ground.inference,
        ground.token,
        fingerprint=f"corral-{version('corral')}",
        timeout_s=bounds.line_timeout_s,
        responses=responses,
    )
    limits = LineLimits(bounds.lines, bounds.line_bytes, bounds.embedding_inputs)
    reader = BatchReader(ground.transactions, ground.blobs, limits)
    runner = BatchRunner(ground.transactions, lines, Places(bounds.lines_at_once))
    writer = BatchWriter(ground.transactions, ground.blobs, ground.ids)
    return [
        BatchHandler(kind, reader, runner, writer, ground.ids, concurrency)
        for kind, concurrency in ((KIND, bounds.batches_at_once), (CLOSING_KIND, _CLOSING_AT_ONCE))
    ]
