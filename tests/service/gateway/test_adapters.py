"""Routes of adapters, with a real control service."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from corral.control.v1 import adapter_pb2

from tests.support.control import RunningControl, run_control
from tests.support.loopback_gateway import run_gateway
from tests.support.registry import Registry, adapter_bytes


@dataclass(frozen=True)
class Scene:
    http: httpx.AsyncClient
    control: RunningControl

    async def create(self, content: bytes | None = None, **fields: str) -> httpx.Response:
        """Register an adapter by a form."""
        content = adapter_bytes() if content is None else content
        about = {"name": "voice", **fields}
        return await self.http.post("/v1/adapters", data=about, files={"file": ("a", content)})

    async def report(self, **fields: Any) -> None:
        """Report the state of every adapter, as a frontend does."""
        registry = Registry.of(self.control.client, self.control.service_metadata)
        reports = [
            adapter_pb2.AdapterReport(
                adapter_id=each.id, project="default", sha256=each.sha256, **fields
            )
            for each in (await registry.call("ListAdapters")).adapters
        ]
        await registry.call("ReportAdapters", frontend="f", address="host:1", reports=reports)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with (
        run_control(tmp_path, adapters={"file_bytes": 8000}) as control,
        run_gateway(control_target=control.target) as gateway,
        gateway.client() as http,
    ):
        yield Scene(http, control)


async def test_an_adapter_is_registered_changed_and_deleted(scene: Scene) -> None:
    """By id or name; updates by POST or PATCH."""
    added = (await scene.create(description="Arr", default_scale="0.5")).json()
    retrieved = (await scene.http.get("/v1/adapters/voice")).json()
    patched = await scene.http.patch(f"/v1/adapters/{added['id']}", json={"default_scale": 0.25})
    stale = {"description": "x", "etag": added["etag"]}
    refused = await scene.http.post("/v1/adapters/voice", json=stale)
    posted = await scene.http.post("/v1/adapters/voice", json={"standing_scale": 1})
    deleted = await scene.http.delete("/v1/adapters/voice")

    assert retrieved == added
    assert (added["object"], added["name"], added["description"]) == ("adapter", "voice", "Arr")
    assert (added["default_scale"], added["standing_scale"], added["engines"]) == (0.5, 0.0, [])
    assert (added["architecture"], added["base_model"], added["model"]) == ("llama", "Tiny", None)
    assert patched.json()["default_scale"] == 0.25
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "stale_generation")
    assert (posted.json()["standing_scale"], posted.json()["default_scale"]) == (1.0, 0.25)
    assert deleted.json() == {"id": added["id"], "object": "adapter", "deleted": True}
    assert (await scene.http.get("/v1/adapters/voice")).status_code == 404


async def test_adapters_are_listed_in_pages(scene: Scene) -> None:
    """Newest first."""
    ids = [(await scene.create(name=name)).json()["id"] for name in ("one", "two", "three")]
    page = (await scene.http.get("/v1/adapters", params={"limit": 2})).json()
    second_page = await scene.http.get("/v1/adapters", params={"after": page["last_id"]})

    assert [each["name"] for each in page["data"]] == ["three", "two"]
    assert (page["object"], page["has_more"]) == ("list", True)
    assert (page["first_id"], page["last_id"]) == (ids[2], ids[1])
    assert [each["id"] for each in second_page.json()["data"]] == [ids[0]]


async def test_an_adapter_has_the_reports_of_engines(scene: Scene) -> None:
    """Including why one failed to load it."""
    await scene.create()
    await scene.report(state="STATE_FAILED", reason="ADAPTER_BASE_MISMATCH", problem="it")
    (engine,) = (await scene.http.get("/v1/adapters/voice", params={"wait": 5})).json()["engines"]
    retried = await scene.http.post("/v1/adapters/voice/retry")

    assert (engine["status"], engine["reason"]) == ("failed", "adapter_base_mismatch")
    assert (engine["address"], engine["problem"]) == ("host:1", "it")
    assert retried.json()["engines"] == [engine]


@pytest.mark.parametrize(
    ("request_", "status", "param"),
    [
        ({"data": {"name": "voice"}, "files": {"other": ("a", b"x")}}, 400, "other"),
        ({"files": {"file": ("a", b"x")}}, 400, "name"),
        ({"data": {"name": "a/b"}, "files": {"file": ("a", b"x")}}, 400, "name"),
        ({"data": {"name": "voice"}, "files": {"file": ("a", b"")}}, 400, "file"),
        ({"data": {"name": "voice", "x": "y"}, "files": {"file": ("a", b"x")}}, 400, "x"),
        ({"data": {"name": "voice"}, "files": {"file": ("a", b"x")}}, 400, None),
        ({"data": {"name": "voice"}, "files": {"file": ("a", bytes(9000))}}, 413, None),
        ({"json": {"name": "voice"}}, 400, "file_id"),
        ({"json": {"name": "voice", "file_id": "file-1"}}, 404, "id"),
        ({"json": {"name": "voice", "file_id": "file-1", "path": "/x"}}, 400, "path"),
        ({"json": []}, 400, None),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, None),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415, None),
    ],
)
async def test_bad_registrations_are_rejected(
    scene: Scene, request_: Any, status: int, param: str | None
) -> None:
    """Nothing is stored."""
    answer = await scene.http.post("/v1/adapters", **request_)

    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param
    assert scene.control.stored() == []


async def test_a_failed_load_is_reported(scene: Scene) -> None:
    """An adapter that replaced another one is kept."""
    folder = scene.control.folder / "adapters"
    folder.mkdir()
    (folder / "v.gguf").write_bytes(adapter_bytes())
    await scene.create()
    await scene.report(state="STATE_FAILED", reason="X", problem="it does not fit")
    body = {"name": "voice", "path": "v.gguf"}
    refused = await scene.http.post("/admin/loras", json=body)
    names = (await scene.http.get("/admin/loras")).json()["loras"]

    assert refused.status_code == 400
    assert "it does not fit" in refused.json()["error"]["message"]
    assert names == ["voice"], "it replaced one, which stays as it was asked for"


async def test_without_a_control_service_adapters_return_503(tmp_path: Path) -> None:
    """The error can be retried."""
    async with run_gateway(control_target="127.0.0.1:1") as gateway, gateway.client() as http:
        answer = await http.get("/v1/adapters")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "upstream_unavailable"
