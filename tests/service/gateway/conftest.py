"""Fixtures of a gateway in front of a fake inference service; the event loop is uvloop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import httpx
import pytest
import uvloop

from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import Loopback, run_gateway
from tests.support.raw_http import RawConnection, open_connection


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in production."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def fake() -> FakeInference:
    return FakeInference()


@pytest.fixture
async def gateway(fake: FakeInference) -> AsyncIterator[Loopback]:
    """A gateway with default settings."""
    async with run_gateway(fake) as running:
        yield running


@pytest.fixture
async def client(gateway: Loopback) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as http:
        yield http


@pytest.fixture
async def connection(gateway: Loopback) -> AsyncIterator[RawConnection]:
    async with open_connection(gateway.address) as raw:
        yield raw
