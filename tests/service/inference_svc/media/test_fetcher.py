"""Files are fetched from allowed hosts only, from a real HTTP server on loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inference_svc.media.fetcher import MediaFetcher
from svc_kit.errors import DomainError, InvalidField, TooLong

FIELD = "messages[0].content[1].image_url"
BODY = b"picture" * 100
RESPONSES = {
    "/a.png": b"HTTP/1.1 200 OK\r\ncontent-length: 700\r\n\r\n" + BODY,
    "/endless": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(10_000_000),
    "/missing": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    "/elsewhere": b"HTTP/1.1 302 Found\r\nlocation: /a.png\r\ncontent-length: 0\r\n\r\n",
    "/cut": b"HTTP/1.1 200 OK\r\ncontent-length: 7000\r\n\r\n" + BODY,
    "/nonsense": b"SSH-2.0-OpenSSH_9.2\r\n",
    "/closed": b"",
}


class FileServer:
    """A server that answers by path, and never for unknown ones."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FileServer"]:
        """Listen on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.requests.append(head)
        response = RESPONSES.get(head.split(" ")[1])
        if response is None:
            await reader.read()
        else:
            writer.write(response)
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[FileServer]:
    """A server that is stopped at the end."""
    async with FileServer().running() as server:
        yield server


async def refusal(fetcher: MediaFetcher, url: str) -> str:
    """Why a URL is not fetched."""
    with pytest.raises(InvalidField) as raised:
        await fetcher.fetch(FIELD, url, 1000)
    assert raised.value.field == FIELD
    return raised.value.message


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_an_allowed_name_is_fetched_also_from_a_private_address(
    server: FileServer, name: str
) -> None:
    """The server gets the name that the URL has, and no compression is asked for."""
    fetcher = MediaFetcher([f"{name}:{server.port}"])

    assert await fetcher.fetch(FIELD, f"http://{name}:{server.port}/a.png", 1000) == BODY
    assert f"host: {name}:{server.port}" in server.requests[0].lower()
    assert "accept-encoding: identity" in server.requests[0].lower()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://127.0.0.1:{other}/a.png", "is not allowed on this server"),
        ("http://127.0.0.1/a.png", "the host '127.0.0.1' is not allowed on this server"),
        ("https://example.com/a.png", "the host 'example.com' is not allowed on this server"),
        ("http://127.0.0.1.example.com:{port}/", "is not allowed on this server"),
        ("http://2130706433:{port}/a.png", "is not allowed on this server"),
        ("http://[::ffff:127.0.0.1]:{port}/a.png", "is not allowed on this server"),
        ("http://user@127.0.0.1:{port}/a.png", "without a user name"),
        ("file:///etc/passwd", "it must be a data, http or https URL"),
        ("ftp://127.0.0.1:{port}/a.png", "it must be a data, http or https URL"),
        ("a.png", "it must be a data, http or https URL"),
        ("http://", "is not allowed on this server"),
        ("http://[::1", "it is not a valid URL"),
        ("http://127.0.0.1:{port}/\x00", "it is not a valid URL"),
        ("\ud800", "it is not a valid URL"),
        ("http://" + "x" * 70_000, "it is not a valid URL"),
    ],
)
async def test_other_addresses_are_refused_without_a_request(
    server: FileServer, url: str, problem: str
) -> None:
    fetcher = MediaFetcher([f"127.0.0.1:{server.port}"])
    address = url.replace("{port}", str(server.port)).replace("{other}", str(server.port ^ 1))

    assert problem in await refusal(fetcher, address)
    assert server.requests == []


async def test_names_that_match_a_suffix_may_not_have_private_addresses(server: FileServer) -> None:
    """Whoever owns a name below the suffix could point it to the network of this server."""
    fetcher = MediaFetcher([f"*.0.0.1:{server.port}", "*.example.com"])

    problem = await refusal(fetcher, f"http://127.0.0.1:{server.port}/a.png")
    assert "the host '127.0.0.1' has no public address" in problem
    assert "is not allowed" in await refusal(fetcher, f"http://0.0.1:{server.port}/a.png")
    assert server.requests == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/missing", "'127.0.0.1' answered with status 404"),
        ("/elsewhere", "'127.0.0.1' redirects to another address, which is not followed"),
        ("/cut", "it cannot be fetched from '127.0.0.1'"),
        ("/nonsense", "it cannot be fetched from '127.0.0.1'"),
        ("/closed", "it cannot be fetched from '127.0.0.1'"),
    ],
)
async def test_answers_without_a_file_are_refused(
    server: FileServer, path: str, problem: str
) -> None:
    """With the reason; nothing else of the answer is passed on."""
    fetcher = MediaFetcher([f"127.0.0.1:{server.port}"])

    assert problem in await refusal(fetcher, f"http://127.0.0.1:{server.port}{path}")
    assert len(server.requests) == 1


async def test_a_server_that_never_answers_is_left_in_time(server: FileServer) -> None:
    """The limit is for the whole file."""
    fetcher = MediaFetcher([f"127.0.0.1:{server.port}"], timeout_s=0.2)
    problem = await refusal(fetcher, f"http://127.0.0.1:{server.port}/never")

    assert "fetching it took longer than 0.2 s" in problem


async def test_reading_stops_at_the_limit_of_bytes(server: FileServer) -> None:
    """Whether or not the server says how long its answer is."""
    fetcher = MediaFetcher([f"127.0.0.1:{server.port}"])
    with pytest.raises(DomainError) as raised:
        await fetcher.fetch(FIELD, f"http://127.0.0.1:{server.port}/endless", 100_000)

    assert isinstance(raised.value, TooLong)
    assert (raised.value.field, raised.value.limit) == (FIELD, 100_000)
    assert 100_000 < raised.value.length < 1_000_000


async def test_a_server_that_does_not_run_is_named() -> None:
    """Its addresses are not."""
    async with FileServer().running() as stopped:
        pass
    problem = await refusal(
        MediaFetcher([f"localhost:{stopped.port}"]), f"http://localhost:{stopped.port}/a.png"
    )

    assert problem == f"Invalid '{FIELD}': it cannot be fetched from 'localhost'"
