"""Opens the tracer that the settings of a service describe."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final

from svc_kit.settings.groups import TracingSettings
from svc_kit.tracing.span import Tracer

_CLOSE_TIMEOUT_S: Final = 5.0


@asynccontextmanager
async def open_tracer(settings: TracingSettings, service: str) -> AsyncIterator[Tracer]:
    """The tracer of a service. Its spans have been sent on exit, or dropped after 5 seconds."""
    if settings.endpoint is None:
        yield Tracer()
        return
    from svc_kit.tracing.exporter import OtlpTracer  # not loaded while it is off

    tracer = OtlpTracer(settings, service=service, version=version("corral"))
    try:
        yield tracer
    finally:
        await asyncio.to_thread(tracer.close, _CLOSE_TIMEOUT_S)
