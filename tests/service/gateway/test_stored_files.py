"""Chat requests that refer to files of the control service."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dialects.shared.media import MAX_FILE_BYTES
from tests.support.control import RunningControl, run_control, write_service_token
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_gateway

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100_000)


def body_of(*file_ids: str) -> dict[str, Any]:
    content = [{"type": "file", "file": {"file_id": each}} for each in file_ids]
    return {"model": "fake", "messages": [{"role": "user", "content": content}]}


@asynccontextmanager
async def run_both(
    folder: Path, fake: FakeInference
) -> AsyncIterator[tuple[RunningControl, httpx.AsyncClient]]:
    token = write_service_token(folder)
    async with (
        run_control(folder) as control,
        run_gateway(fake, control_target=control.target, service_token_file=token) as gateway,
        gateway.client() as http,
    ):
        yield control, http


async def test_file_ids_are_replaced_by_the_bytes_of_the_files(
    tmp_path: Path, fake: FakeInference
) -> None:
    """A picture and a document, which keeps its name; a file that is used twice is sent twice."""
    async with run_both(tmp_path, fake) as (control, http):
        picture = await control.client.create(PNG, filename="cat.png")
        text = await control.client.create(b"hello", filename="a.txt")
        ids = picture.id, text.id, picture.id
        response = await http.post("/v1/chat/completions", json=body_of(*ids))

    assert response.status_code == 200
    (request,) = fake.calls.requests
    first, second, third = request.conversation.messages[0].parts
    assert first.image.data == PNG
    assert (second.document.data, second.document.filename) == (b"hello", "a.txt")
    assert third == first


async def test_a_part_of_an_unknown_upload_is_no_error_in_the_log(
    tmp_path: Path, fake: FakeInference, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused while the part is still being sent."""
    async with run_both(tmp_path, fake) as (_, http):
        caplog.clear()
        parts = f"/v1/uploads/upload_{'0' * 32}/parts"
        response = await http.post(parts, files={"data": bytes(8 << 20)})

    assert response.status_code == 404
    assert [each.message for each in caplog.records if each.levelno > logging.INFO] == []


async def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, fake: FakeInference) -> None:
    """One that does not exist or belongs to another project, and one that is too large."""
    async with run_both(tmp_path, fake) as (control, http):
        other = await control.of_project("other").create(PNG)
        large = await control.client.create(bytes(MAX_FILE_BYTES + 1))
        kept = await control.client.create(PNG)
        for file_id, status in [(other.id, 404), ("file-none", 404), (large.id, 400)]:
            response = await http.post("/v1/chat/completions", json=body_of(kept.id, file_id))
            error = response.json()["error"]

            assert (response.status_code, error["param"]) == (
                status,
                "messages[0].content[1].file.file_id",
            )
    assert fake.calls.requests == []
