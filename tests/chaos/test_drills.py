"""Drills of fair shares, of changes of a certificate and of a drain, under load and with real
processes: they log their figures, as docs/operate/drills.md has them.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import httpx
import openai
import pytest
from corral.control.v1 import file_pb2
from corral.control.v1 import file_service_pb2 as pb
from corral.control.v1.file_service_pb2_grpc import FileServiceStub

from svc_kit.auth.keys import hash_key
from svc_kit.network import parse_address
from svc_kit.rpc.client import open_channel
from tests.e2e.test_shutdown import TOKENS, read_stream, start_stream
from tests.support.certificates import Authority, served_serial
from tests.support.control import USER_DATA
from tests.support.minilm import minilm_path
from tests.support.rpc import Rpc, gather, make_chat
from tests.support.services import corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
log = logging.getLogger(__name__)
NUM_UPLOADS = 1000
NUM_CHATS = 60
CONNECTIONS = 10
"""Of the project that sends much: a connection has at most a hundred calls at once."""
NUM_SLOW_FILES, NUM_SENTENCES = 3, 80_000
NUM_CHANGES = 5
NUM_STREAMS = 8
Send = Callable[[grpc.aio.Channel, str], Awaitable[object]]


def caller(project: str) -> tuple[tuple[str, str], ...]:
    return (("x-corral-project", project), ("x-corral-scopes", "inference"))


async def upload(channel: grpc.aio.Channel, project: str) -> object:
    """Store a small file."""

    async def messages() -> AsyncIterator[pb.CreateFileRequest]:
        header = file_pb2.FileHeader(filename="a.txt", purpose=USER_DATA)
        yield pb.CreateFileRequest(header=header)
        yield pb.CreateFileRequest(chunk=bytes(3000))

    call = FileServiceStub(channel).CreateFile
    return await call(messages(), metadata=caller(project))


async def chat(channel: grpc.aio.Channel, project: str) -> object:
    request = make_chat(stopping={"max_tokens": 64, "ignore_eos": True})
    return await gather(Rpc(channel).inference.Chat(request, metadata=caller(project)))


@pytest.mark.parametrize(
    ("send", "number", "service"), [(upload, NUM_UPLOADS, "control"), (chat, NUM_CHATS, "target")]
)
async def test_a_project_that_sends_much_does_not_delay_another(
    tmp_path: Path, send: Send, number: int, service: str
) -> None:
    """Its first request ends before most of what was sent at once, and earlier."""
    done = 0
    first = asyncio.Event()
    with corral_up(tmp_path) as corral:
        token = (tmp_path / "data" / "service-token").read_text().strip()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            channels = [
                await stack.enter_async_context(open_channel(getattr(corral, service), token=token))
                for _ in range(CONNECTIONS + 1)
            ]
            started = time.monotonic()
            await send(channels[0], "red")
            alone_s = time.monotonic() - started

            async def send_blue(channel: grpc.aio.Channel) -> None:
                nonlocal done
                await send(channel, "blue")
                done += 1
                first.set()

            began = time.monotonic()
            flood = [
                group.create_task(send_blue(channels[1 + each % CONNECTIONS]))
                for each in range(number)
            ]
            await first.wait()
            started = time.monotonic()
            await send(channels[0], "red")
            waited_s, done_before = time.monotonic() - started, done
            await asyncio.wait(flood)
            log.warning(
                "%s: %d at once took %.1f s; the first of another project %.2f s, alone %.2f s;"
                " %d of the others had ended",
                *(send.__name__, number, time.monotonic() - began, waited_s, alone_s, done_before),
            )

    assert done_before < 0.75 * number


async def index(client: openai.AsyncOpenAI, *texts: bytes) -> tuple[str, list[str]]:
    """Add files to a store of their own; return its id and theirs."""
    store = await client.vector_stores.create()
    files = [
        await client.files.create(file=(f"{number}.txt", text), purpose="assistants")
        for number, text in enumerate(texts)
    ]
    for file in files:
        await client.vector_stores.files.create(store.id, file_id=file.id)
    return store.id, [file.id for file in files]


async def index_small_file(client: openai.AsyncOpenAI) -> float:
    """The seconds until a file of eleven bytes can be searched."""
    started = time.monotonic()
    store_id, (file_id,) = await index(client, b"Hello world")
    file = await client.vector_stores.files.poll(file_id, vector_store_id=store_id)
    assert file.status == "completed"
    return time.monotonic() - started


async def test_slow_files_of_a_project_do_not_delay_a_small_one(tmp_path: Path) -> None:
    """Those of one project, more than are read at once, are not done when another's is."""
    keys = [{"name": name, "project": name, "sha256": hash_key(name)} for name in ("red", "blue")]
    encoder = ("--embedding-model", f"encoder={minilm_path()}")
    with corral_up(tmp_path, *encoder, gateway={"keys": keys}) as corral:
        async with corral.sdk("red") as red, corral.sdk("blue") as blue:
            alone_s = await index_small_file(red)
            slow_text = b"The quick brown fox jumps over the lazy dog. " * NUM_SENTENCES
            store_id, file_ids = await index(blue, *[slow_text] * NUM_SLOW_FILES)
            waited_s = await index_small_file(red)
            files = [
                await blue.vector_stores.files.retrieve(each, vector_store_id=store_id)
                for each in file_ids
            ]
    log.warning("a file of another project took %.2f s, alone %.2f s", waited_s, alone_s)

    assert [each.status for each in files] == ["in_progress"] * NUM_SLOW_FILES


async def test_no_request_fails_while_certificates_change(tmp_path: Path) -> None:
    """Not on new connections, and no stream on one that stays open."""
    authority, counts = Authority(), {"requests": 0, "streams": 0}
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    certificate, key = authority.issue("localhost").write(tmp_path, "tls")
    tls = {"tls.certificate_file": str(certificate), "tls.key_file": str(key)}
    trusting = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    stop = asyncio.Event()

    async def connect_again(url: str) -> None:
        while not stop.is_set():
            async with httpx.AsyncClient(verify=trusting, trust_env=False, timeout=60) as client:
                assert (await client.get(f"{url}/models")).status_code == 200
            counts["requests"] += 1

    async def stream(url: str) -> None:
        http = openai.DefaultAsyncHttpxClient(verify=trusting, trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=url, api_key="x", max_retries=0, http_client=http
        ) as client:
            while not stop.is_set():
                ending = await read_stream(await start_stream(client))
                assert ending == ("length", TOKENS)
                counts["streams"] += 1

    seconds = []
    with corral_up(tmp_path, gateway=tls) as corral:
        address = parse_address(corral.url.removeprefix("https://"))
        async with asyncio.TaskGroup() as group:
            for work in (stream, stream, connect_again):
                group.create_task(work(corral.api))
            for _ in range(NUM_CHANGES):
                changed = authority.issue("localhost")
                changed.write(tmp_path, "tls")
                started = time.monotonic()
                while await asyncio.to_thread(served_serial, address) != changed.serial:
                    continue
                seconds.append(time.monotonic() - started)
            stop.set()
    log.warning(
        "%d changes of a certificate, each used after at most %.1f s: %d requests on connections of"
        " their own and %d streams on two, none failed",
        *(NUM_CHANGES, max(seconds), counts["requests"], counts["streams"]),
    )


async def test_a_drain_ends_what_was_accepted(tmp_path: Path) -> None:
    """Streams that run or wait in the queue get all their tokens; new requests are refused."""
    refused = 0
    with corral_up(tmp_path) as corral:
        async with corral.sdk() as client:
            streams = [await start_stream(client) for _ in range(NUM_STREAMS)]
            reading = [asyncio.create_task(read_stream(each)) for each in streams]
            started = time.monotonic()
            corral.program.interrupt()
            await corral.program.line("^draining$", service="gateway")
            while not all(each.done() for each in reading):
                with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
                    await start_stream(client)
                refused += 1
            endings = await asyncio.gather(*reading)
        code = await asyncio.to_thread(corral.program.wait)
        log.warning(
            "a drain with %d streams: %d had all %d tokens, %d later requests were refused, exit"
            " after %.1f s with code %d",
            *(NUM_STREAMS, endings.count(("length", TOKENS)), TOKENS, refused),
            *(time.monotonic() - started, code),
        )

    assert endings == [("length", TOKENS)] * NUM_STREAMS
    assert code == 0
