"""Files and uploads with the official SDK and plain HTTP, and kills of the control service."""

import asyncio
import fcntl
import hashlib
import io
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.processes import Ends
from tests.support.rpc import PARIS
from tests.support.sdk import capital_of_france
from tests.support.services import corral_up

pytestmark = pytest.mark.e2e

LINES = b'{"custom_id": "1"}\n' * 1000
MIB = 1024 * 1024


def test_a_file_is_created_listed_read_and_deleted(client: openai.OpenAI) -> None:
    file = client.files.create(
        file=("ünï.jsonl", LINES),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )

    assert file.id.startswith("file-")
    assert (file.object, file.bytes, file.filename) == ("file", len(LINES), "ünï.jsonl")
    assert file.expires_at == file.created_at + 3600
    assert client.files.wait_for_processing(file.id).status == "processed"
    assert client.files.retrieve(file.id) == file
    assert file.id in [file.id for file in client.files.list(purpose="batch")]
    assert client.files.content(file.id).read() == LINES
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError, match=f"No such File object: {file.id}") as missing:
        client.files.retrieve(file.id)
    assert (missing.value.code, missing.value.param) == (None, "id")


def test_files_can_be_deleted_while_they_are_listed(client: openai.OpenAI) -> None:
    """The cursor of the next page is a deleted file."""
    ids = {client.files.create(file=b"x", purpose="vision").id for _ in range(5)}

    walked = []
    for file in client.files.list(purpose="vision", limit=2, order="asc"):
        walked.append(file.id)
        client.files.delete(file.id)

    assert set(walked) >= ids
    assert walked == sorted(walked)


def test_a_file_can_be_uploaded_in_parts(client: openai.OpenAI, tmp_path: Path) -> None:
    """With the helper of the SDK and a checksum."""
    path = tmp_path / "big.bin"
    path.write_bytes(os.urandom(3 * MIB))

    upload = client.uploads.upload_file_chunked(
        file=path,
        mime_type="application/octet-stream",
        purpose="user_data",
        part_size=MIB,
        md5=hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest(),
    )

    assert (upload.status, upload.object) == ("completed", "upload")
    assert upload.file is not None
    assert upload.file.filename == "big.bin"
    assert client.files.content(upload.file.id).read() == path.read_bytes()


def test_an_upload_can_be_cancelled(client: openai.OpenAI) -> None:
    """It accepts no parts afterwards."""
    upload = client.uploads.create(
        bytes=5, filename="a", mime_type="text/plain", purpose="user_data"
    )
    part = client.uploads.parts.create(upload.id, data=io.BytesIO(b"abcde"))

    assert (part.object, part.upload_id) == ("upload.part", upload.id)
    assert client.uploads.cancel(upload.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError) as refused:
        client.uploads.complete(upload.id, part_ids=[part.id])
    assert refused.value.code == "upload_not_pending"


def test_the_size_limit_of_an_upload_is_eight_gigabytes(client: openai.OpenAI) -> None:
    """Like OpenAI's; checked before any bytes are sent."""
    limit = 8 * 2**30
    upload = client.uploads.create(
        bytes=limit, filename="a", mime_type="text/plain", purpose="user_data"
    )

    assert client.uploads.cancel(upload.id).bytes == limit
    with pytest.raises(openai.APIStatusError) as refused:
        client.uploads.create(
            bytes=limit + 1, filename="a", mime_type="text/plain", purpose="user_data"
        )
    assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")


async def test_errors_have_openais_params_and_codes(
    http: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    """`param` is the field of the request."""
    file = {"file": ("a.txt", b"x")}
    cases: list[tuple[str, dict[str, object], int, str | None, str | None]] = [
        ("/v1/files", {"files": file}, 400, "missing_required_parameter", "purpose"),
        (
            "/v1/files",
            {"files": file, "data": {"purpose": "nonsense"}},
            400,
            "invalid_value",
            "purpose",
        ),
        (
            "/v1/files",
            {"files": {"file": ("x" * 256, b"x")}, "data": {"purpose": "batch"}},
            400,
            "string_above_max_length",
            "filename",
        ),
        (
            "/v1/files",
            {
                "files": file,
                "data": {
                    "purpose": "batch",
                    "expires_after[anchor]": "created_at",
                    "expires_after[seconds]": "5",
                },
            },
            400,
            "integer_below_min_value",
            "expires_after.seconds",
        ),
        ("/v1/files", {"data": {"purpose": "batch"}}, 415, "unsupported_media_type", None),
        ("/v1/files", {"json": {"purpose": "batch"}}, 415, "unsupported_media_type", None),
        (
            "/v1/uploads",
            {"json": {"filename": "a", "mime_type": "b", "purpose": "batch"}},
            400,
            "missing_required_parameter",
            "bytes",
        ),
        (
            "/v1/uploads",
            {"json": {"bytes": 10**12, "filename": "a", "mime_type": "b", "purpose": "vision"}},
            413,
            "request_too_large",
            None,
        ),
        ("/v1/uploads/upload_x/complete", {"json": {"part_ids": ["a"]}}, 404, None, "id"),
        ("/v1/uploads/upload_x/parts", {"files": {"data": b"x"}}, 404, None, "id"),
    ]
    for path, body, status, code, param in cases:
        with subtests.test(path=path, body=body):
            answer = await http.post(path, **body)  # type: ignore[arg-type]
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (status, code, param)


async def test_the_purpose_may_follow_the_file_in_a_form(http: httpx.AsyncClient) -> None:
    """As with `curl -F file=@a -F purpose=vision`. A truncated form is refused."""
    part = '--x\r\ncontent-disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'
    form = part.format("file", '; filename="../../a"', "bytes") + part.format(
        "purpose", "", "vision"
    )
    headers = {"content-type": "multipart/form-data; boundary=x"}

    response = await http.post("/v1/files", content=form + "--x--\r\n", headers=headers)
    cut = await http.post("/v1/files", content=form, headers=headers)

    assert (response.json()["filename"], response.json()["purpose"]) == ("../../a", "vision")
    assert cut.status_code == 400


async def test_content_is_sent_as_an_attachment(http: httpx.AsyncClient) -> None:
    """Without a content type and with an escaped name. Ranges are supported."""
    name = 'a".html'
    response = await http.post(
        "/v1/files",
        data={"purpose": "user_data"},
        files={"file": (name, b"<script>0123456789</script>")},
    )
    url = f"/v1/files/{response.json()['id']}/content"
    complete = await http.get(url)
    part = await http.get(url, headers={"range": "bytes=8-17"})
    tail = await http.get(url, headers={"range": "bytes=-9"})
    beyond = await http.get(url, headers={"range": "bytes=1000-"})

    assert complete.headers["content-type"] == "application/octet-stream"
    assert complete.headers["x-content-type-options"] == "nosniff"
    assert complete.headers["content-disposition"].startswith("attachment; filename*=UTF-8''a%")
    assert (part.status_code, part.content) == (206, b"0123456789")
    assert part.headers["content-range"] == "bytes 8-17/27"
    assert tail.content == b"</script>"
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */27")


async def test_an_idempotency_key_prevents_duplicates(http: httpx.AsyncClient) -> None:
    """A retry gets the first response; other content with the same key is a permanent conflict."""

    async def post(content: bytes) -> httpx.Response:
        return await http.post(
            "/v1/files",
            data={"purpose": "user_data"},
            files={"file": ("a", content)},
            headers={"idempotency-key": "once"},
        )

    first, retry, other = await post(b"a"), await post(b"a"), await post(b"b")

    assert first.json() == retry.json()
    assert (other.status_code, other.json()["error"]["param"]) == (409, "Idempotency-Key")
    assert other.headers["x-should-retry"] == "false"


async def test_inference_continues_without_the_control_service(tmp_path: Path) -> None:
    """Another Corral has locked the data folder: chats work, files are 503 until it is released."""
    folder = tmp_path / "data" / "control"
    folder.mkdir(parents=True)
    lock = os.open(folder / "control.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with corral_up(tmp_path) as corral:
        async with corral.sdk() as sdk:
            answer = await capital_of_france(sdk)
            with pytest.raises(openai.InternalServerError) as refused:
                await sdk.files.list()
            os.close(lock)
            await corral.program.line("control is back")
            files = [file.id async for file in sdk.files.list()]

    assert answer == PARIS
    assert (refused.value.status_code, refused.value.code) == (503, "upstream_unavailable")
    assert files == []


async def test_a_killed_control_service_leaves_complete_files_only(tmp_path: Path) -> None:
    """SIGKILL during an upload: the client gets an error, stored files are there after the restart,
    and the incomplete file is not."""
    with corral_up(tmp_path) as corral:
        async with corral.sdk() as sdk:
            stored = await sdk.files.create(file=b"kept", purpose="user_data")
            upload = await sdk.uploads.create(
                bytes=8, filename="a", mime_type="text/plain", purpose="user_data"
            )
            first = await sdk.uploads.parts.create(upload.id, data=b"abcd")

            half_sent = asyncio.Event()
            killed = asyncio.Event()

            async def form() -> AsyncIterator[bytes]:
                yield b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nvision\r\n'
                yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="b"\r\n\r\n'
                for _ in range(4):
                    yield b"x" * MIB
                half_sent.set()
                await killed.wait()
                for _ in range(4):
                    yield b"x" * MIB
                yield b"\r\n--x--\r\n"

            async with httpx.AsyncClient(base_url=corral.url, trust_env=False) as plain:
                headers = {"content-type": "multipart/form-data; boundary=x"}
                posting = asyncio.create_task(
                    plain.post("/v1/files", content=form(), headers=headers, timeout=30)
                )
                await half_sent.wait()
                mark = corral.program.bookmark()
                control = corral.program.member("serve control")
                with Ends([control.pid]) as ends:
                    os.kill(control.pid, signal.SIGKILL)
                    await asyncio.to_thread(ends.wait)
                killed.set()
                answer = await posting
            await corral.program.line("control is back", after=mark)

            files = [file.id async for file in sdk.files.list()]
            second = await sdk.uploads.parts.create(upload.id, data=b"efgh")
            completed = await sdk.uploads.complete(upload.id, part_ids=[first.id, second.id])
            assert completed.file is not None
            content = await (await sdk.files.content(completed.file.id)).aread()

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert files == [stored.id]
    assert content == b"abcdefgh"
