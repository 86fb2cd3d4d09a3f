"""Batches: what callers do with them, and what carries them out."""

from importlib.metadata import version

from corral.control.v1 import batch_service_pb2_grpc

from control_svc.api.batch_service import BatchServicer
from control_svc.assembly.ground import Ground
from control_svc.clients.line_client import LineClient
from control_svc.domain.batch_lines import LineLimits
from control_svc.usecases.batch_places import Places
from control_svc.usecases.batch_reading import BatchReader
from control_svc.usecases.batch_running import BatchRunner
from control_svc.usecases.batch_work import BatchHandler
from control_svc.usecases.batch_writing import BatchWriter
from control_svc.usecases.batches import Batches
from svc_kit.rpc_server import Service


def batch_service(ground: Ground) -> Service:
    """What callers do with batches."""
    batches = Batches(
        ground.transactions,
        ground.notices,
        ground.ids,
        ground.tokens,
        ground.clock,
        ground.settings.jobs.poll_interval_s,
    )
    return Service(
        batch_service_pb2_grpc.add_BatchServiceServicer_to_server,
        BatchServicer(batches),
        "corral.control.v1.BatchService",
    )


def batch_handler(ground: Ground) -> BatchHandler:
    """What does the jobs of batches."""
    bounds = ground.settings.batches
    lines = LineClient(
        ground.inference,
        ground.token,
        fingerprint=f"corral-{version('corral')}",
        timeout_s=bounds.line_timeout_s,
    )
    limits = LineLimits(bounds.lines, bounds.line_bytes, bounds.embedding_inputs)
    return BatchHandler(
        BatchReader(ground.transactions, ground.blobs, limits),
        BatchRunner(ground.transactions, lines, Places(bounds.lines_at_once)),
        BatchWriter(ground.transactions, ground.blobs, ground.ids, ground.clock),
        ground.ids,
        bounds.batches_at_once,
    )
