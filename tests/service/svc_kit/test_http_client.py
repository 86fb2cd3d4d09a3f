"""Everything that reads from a server of others, with servers that misbehave."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from control_svc.agent.mcp import McpError
from control_svc.agent.mcp_client import RemoteMcpServers, RemoteServer
from inference_svc.media.fetcher import MediaFetcher
from inference_svc.model_pool.downloads import ModelDownloader
from inference_svc.models.sources import DownloadFile
from svc_kit.auth.jwt_issuers import IssuerKeys, _fetcher
from svc_kit.errors import DomainError, DownloadFailed, InvalidField, TooLong, UpstreamUnavailable
from svc_kit.http_client import limit_download, open_client
from svc_kit.settings.groups import IssuerSettings
from tests.support.hostile_server import (
    BEHAVIOURS,
    Behaviour,
    endless_body,
    endless_redirects,
    run_hostile_server,
    slow_drip,
)

MOST_BYTES = 24 * 1024 * 1024
"""That any reader takes, besides what the sockets hold."""
MOST_REQUESTS = 12


class Readers:
    """One method for each reader. They raise a DomainError or an McpError."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._host = url.removeprefix("http://")
        self._folder = folder

    async def issuer(self) -> None:
        settings = IssuerSettings(name="idp", issuer=self._url, audience="a")
        await IssuerKeys("idp", _fetcher(settings)).find("k")

    async def hub(self) -> None:
        """What the Hub says about a repository."""
        from inference_svc.models.huggingface import find_files

        await find_files("hf:owner/models", with_projector=True, with_adapter=True)

    async def download(self) -> None:
        """A model from an allowed host."""
        file = DownloadFile(source=f"{self._url}/model.gguf", name="model.gguf", sha256="0" * 64)
        downloader = ModelDownloader(MediaFetcher([self._host]), retry_s=0)
        await downloader.download(file, self._folder, lambda _: None)

    async def picture(self) -> None:
        fetcher = MediaFetcher([self._host], timeout_s=2)
        await fetcher.fetch("url", f"{self._url}/a.png", 1_000_000)
        raise InvalidField(field="url", problem="it is no picture")  # as the decoder says

    async def mcp(self) -> None:
        server = RemoteServer(url=self._url, headers={}, timeout_s=2, output_bytes=1_000_000)
        await RemoteMcpServers({"shop": server}).tools("shop")


READERS: dict[Callable[[Readers], Awaitable[None]], tuple[type[Exception], ...]] = {
    Readers.issuer: (UpstreamUnavailable,),
    Readers.hub: (DownloadFailed,),
    Readers.download: (DownloadFailed,),
    Readers.picture: (InvalidField, TooLong),
    Readers.mcp: (McpError,),
}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("read", READERS, ids=lambda each: each.__name__)
async def test_a_server_that_misbehaves_costs_a_bounded_amount(
    read: Callable[[Readers], Awaitable[None]],
    behaviour: Behaviour,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes, requests and time; the error is the reader's own, and no connection stays open."""
    if behaviour is slow_drip and read in (Readers.hub, Readers.download):
        pytest.skip("their time limits are longer; they end with their caller, as below")
    async with run_hostile_server(behaviour) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        async with asyncio.timeout(50):
            with pytest.raises((DomainError, McpError)) as failed:
                await read(Readers(server.url, tmp_path))
            await server.closed.wait()

    assert isinstance(failed.value, READERS[read])
    assert server.num_bytes < MOST_BYTES
    assert server.num_requests <= MOST_REQUESTS


@pytest.mark.parametrize("read", READERS, ids=lambda each: each.__name__)
async def test_a_read_ends_with_its_caller(
    read: Callable[[Readers], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closed at once."""
    async with run_hostile_server(slow_drip) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        task = asyncio.ensure_future(read(Readers(server.url, tmp_path)))
        async with asyncio.timeout(50):
            await server.began.wait()
            task.cancel()
            await asyncio.wait((task,))
            if read is Readers.issuer:  # the fetch goes on for other callers, up to its own limit
                return
            await server.closed.wait()

    assert task.cancelled()


async def test_a_download_that_drips_is_given_up() -> None:
    """Although no read times out."""
    async with run_hostile_server(slow_drip) as server, open_client(None, block_s=0.2) as client:
        with pytest.raises(httpx2.ReadTimeout, match="less than 1 MiB"):
            await client.get(server.url)
    assert server.num_bytes < 1000


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [(endless_body, httpx2.ReadError), (endless_redirects, httpx2.TooManyRedirects)],
)
async def test_a_blocking_download_is_limited_too(
    behaviour: Behaviour, error: type[Exception]
) -> None:
    """That of a model in the settings, while the service starts."""

    def read(url: str) -> None:
        hooks = {"response": [limit_download]}
        with httpx2.Client(event_hooks=hooks, follow_redirects=True, max_redirects=5) as client:
            client.get(url)

    async with run_hostile_server(behaviour) as server:
        with pytest.raises(error):
            await asyncio.to_thread(read, server.url)
    assert server.num_bytes < MOST_BYTES
