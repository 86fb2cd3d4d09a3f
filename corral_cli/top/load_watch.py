"""`corral top`: the load of a running inference service, live."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator

import click
import grpc.aio
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as inference_pb
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from corral_cli.access import inference_options
from corral_cli.connection import CALL_TIMEOUT_S, Connection, list_all
from corral_cli.output import echo, redraw
from corral_cli.top.report import Sample, lines, report


@click.command("top")
@click.option("--interval", "interval_s", type=click.FloatRange(0.1, 60), default=1.0,
              show_default=True, help="Seconds between samples.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one sample, after an interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print an object in a line a sample.")
@inference_options
def top(inference: Connection, interval_s: float, once: bool, as_json: bool) -> None:
    """Show slots, queues, KV cache and tokens per second of each model, and live requests.

    Needs a key with the scope admin, if the server requires one. Ctrl-C ends it.
    """
    clears = sys.stdout.isatty() and not (once or as_json)

    async def show(channel: grpc.aio.Channel) -> None:
        previous: Sample | None = None
        async for sample in samples(channel, interval_s):
            if previous is not None:
                found = report(previous, sample)
                text = json.dumps(found) if as_json else "\n".join(lines(found, inference.target))
                (redraw if clears else echo)(text)
                if once:
                    return
            previous = sample

    try:
        inference.run(show)
    except KeyboardInterrupt:
        echo()


async def samples(channel: grpc.aio.Channel, interval_s: float) -> AsyncIterator[Sample]:
    """Yield a sample at each interval, the first at once."""
    engine, inference = EngineServiceStub(channel), InferenceServiceStub(channel)
    while True:
        started_s = time.monotonic()
        loads = await engine.GetLoad(engine_pb.GetLoadRequest(), timeout=CALL_TIMEOUT_S)
        list_models, list_requests = (
            inference_pb.ListModelsRequest(),
            engine_pb.ListRequestsRequest(),
        )
        yield Sample(
            started_s,
            loads.load,
            [each async for each in list_all(inference.ListModels, list_models, "models")],
            [each async for each in list_all(engine.ListRequests, list_requests, "requests")],
            loads.replicas,
        )
        await asyncio.sleep(max(0.0, started_s + interval_s - time.monotonic()))
