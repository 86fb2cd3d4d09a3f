"""A decoder with real child processes."""

from collections.abc import AsyncIterator

import pytest

from inference_svc.media.decoder import MediaDecoder, MediaLimits
from inference_svc.sandbox_jobs import PRELOADED
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    """A single child, in which a file may be left over from another one."""
    settings = SandboxSettings(min_children=1, max_children=1, preload=PRELOADED)
    async with SandboxPool(settings) as pool:
        yield pool


@pytest.fixture
def decoder(pool: SandboxPool) -> MediaDecoder:
    return MediaDecoder(pool, MediaLimits())
