"""Batches of messages: the gateway and the control service before a scripted inference service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.app import running as running_gateway
from gateway.config import GatewaySettings
from svc_kit.errors import InvalidField
from tests.support.batches import CHAT, Plan, RunningBatches, chat_line, run_batches
from tests.support.loopback_gateway import LOOPBACK

BATCHES = "/v1/messages/batches"


def request(custom_id: str, **params: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": custom_id}]
    return {
        "custom_id": custom_id,
        "params": {"model": "fake", "max_tokens": 8, "messages": messages, **params},
    }


@dataclass(frozen=True)
class Services:
    """All services, and a client of the gateway."""

    batches: RunningBatches
    http: httpx.AsyncClient

    async def post(self, *requests: dict[str, Any]) -> Any:
        answer = await self.http.post(BATCHES, json={"requests": requests})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def get(self, path: str) -> Any:
        answer = await self.http.get(BATCHES + path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def run(self, *requests: dict[str, Any]) -> Any:
        batch = await self.post(*requests)
        await self.batches.batches.wait_for_outcome(batch["id"])
        return await self.get(f"/{batch['id']}")

    async def results(self, batch: Any) -> dict[str, Any]:
        answer = await self.http.get(batch["results_url"])
        assert answer.status_code == 200, answer.text
        lines = [orjson.loads(line) for line in answer.text.splitlines()]
        return {line["custom_id"]: line["result"] for line in lines}


@asynccontextmanager
async def run_services(folder: Path) -> AsyncIterator[Services]:
    async with run_batches(folder) as batches:
        settings = GatewaySettings(
            listen=LOOPBACK,
            management_listen=None,
            control_target=batches.control.target,
            service_token_file=folder / "token",
            allow_keyless=True,
        )
        async with (
            running_gateway(settings) as endpoints,
            httpx.AsyncClient(
                base_url=f"http://{endpoints.http}", trust_env=False, timeout=20
            ) as http,
        ):
            yield Services(batches, http)


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    async with run_services(tmp_path) as running:
        yield running


def counts(batch: Any) -> list[int]:
    names = ("processing", "succeeded", "errored", "canceled", "expired")
    return [batch["request_counts"][name] for name in names]


async def test_every_request_has_a_result(services: Services) -> None:
    """With several models; a request that is not valid fails alone."""
    new = await services.post(request("probe"))
    batch = await services.run(
        request("good"),
        request("other", model="org/other:1b"),
        request("bad", max_tokens=None),
        request("streamed", stream=True),
    )
    results = await services.results(batch)

    assert (new["type"], new["processing_status"]) == ("message_batch", "in_progress")
    assert (counts(new), new["results_url"], new["ended_at"]) == ([1, 0, 0, 0, 0], None, None)
    assert (batch["processing_status"], counts(batch)) == ("ended", [0, 2, 2, 0, 0])
    assert batch["ended_at"] >= batch["created_at"]
    assert results["good"]["type"] == "succeeded"
    assert results["good"]["message"]["content"] == [{"type": "text", "text": "Hello world"}]
    assert results["other"]["message"]["model"] == "org/other:1b"
    error = results["bad"]["error"]
    assert (results["bad"]["type"], error["type"]) == ("errored", "error")
    assert error["error"] == {
        "type": "invalid_request_error",
        "message": "Missing required parameter: 'max_tokens'.",
    }
    assert "'stream'" in results["streamed"]["error"]["error"]["message"]


async def test_usage_has_the_cached_tokens(services: Services) -> None:
    services.batches.fake.script.cached_tokens = 2
    batch = await services.run(request("a"))
    usage = (await services.batches.batches.get(batch["id"])).usage

    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (3, 2, 3)


async def test_a_cancelled_batch_says_what_did_not_run(services: Services) -> None:
    """Results of the others are kept; results are read after the end."""
    fake = services.batches.fake
    fake.block("slow")
    batch = await services.post(request("slow"))
    await fake.wait_for_attempts("slow", 1)
    early = await services.http.get(f"{BATCHES}/{batch['id']}/results")
    undeleted = await services.http.delete(f"{BATCHES}/{batch['id']}")
    cancelled = (await services.http.post(f"{BATCHES}/{batch['id']}/cancel")).json()
    await services.batches.batches.wait_for_outcome(batch["id"])
    ended = await services.get(f"/{batch['id']}")

    for refused in (early, undeleted):
        assert refused.status_code == 400
        assert "has not ended" in refused.json()["error"]["message"]
    assert cancelled["processing_status"] in ("canceling", "ended")
    assert cancelled["cancel_initiated_at"] is not None
    assert (ended["processing_status"], counts(ended)) == ("ended", [0, 0, 0, 1, 0])
    assert await services.results(ended) == {"slow": {"type": "canceled"}}


async def test_an_expired_batch_says_what_did_not_run(services: Services) -> None:
    """After 24 hours."""
    fake = services.batches.fake
    fake.block("slow")
    batch = await services.post(request("slow"))
    await fake.wait_for_attempts("slow", 1)
    services.batches.control.clock.advance(hours=25)
    await services.batches.batches.wait_for_outcome(batch["id"])
    ended = await services.get(f"/{batch['id']}")

    assert counts(ended) == [0, 0, 0, 0, 1]
    assert await services.results(ended) == {"slow": {"type": "expired"}}


async def test_a_request_that_fails_for_good_is_an_error_of_the_service(
    services: Services,
) -> None:
    """In the envelope; with the field of the body."""
    refusal = InvalidField(field="messages[0].content", problem="no")
    services.batches.fake.plans["a"] = Plan(always=refusal)
    results = await services.results(await services.run(request("a")))

    assert results["a"]["error"]["error"] == {
        "type": "invalid_request_error",
        "message": "Invalid 'messages[0].content': no",
    }


async def test_batches_are_listed_in_both_directions(services: Services) -> None:
    """Those of other endpoints are not among them, and not found by their ids."""
    foreign = await services.batches.batches.create([chat_line("a")], endpoint=CHAT)
    ids = [(await services.post(request(name)))["id"] for name in ("a", "b", "c")][::-1]
    first = await services.get("?limit=2")
    after = await services.get(f"?after_id={ids[1]}")
    before = await services.get(f"?before_id={ids[1]}")
    wrong = await services.http.get(f"{BATCHES}?after_id=x")
    missing = await services.http.get(f"{BATCHES}/{foreign.id}")

    assert [batch["id"] for batch in first["data"]] == ids[:2]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[0], ids[1])
    assert ([batch["id"] for batch in after["data"]], after["has_more"]) == (ids[2:], False)
    assert [batch["id"] for batch in before["data"]] == ids[:1]
    assert (wrong.status_code, "'after_id'" in wrong.json()["error"]["message"]) == (400, True)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")


async def test_a_deleted_batch_is_gone_with_its_files(services: Services) -> None:
    batch = await services.run(request("a"), request("bad", max_tokens=None))
    deleted = await services.http.delete(f"{BATCHES}/{batch['id']}")
    again = await services.http.delete(f"{BATCHES}/{batch['id']}")
    files = (await services.http.get("/v1/files")).json()["data"]

    assert deleted.json() == {"id": batch["id"], "type": "message_batch_deleted"}
    assert again.status_code == 404
    assert files == []


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "'requests'"),
        ([request("a"), request("a")], "'requests[1].custom_id'"),
        ([request("a b")], "'requests[0].custom_id'"),
        ([request("a", model="")], "'requests[0].params.model'"),
        ([{"custom_id": "a"}], "'requests[0].params'"),
    ],
)
async def test_a_bad_batch_is_refused_when_it_is_created(
    services: Services, requests: list[Any], message: str
) -> None:
    answer = await services.http.post(BATCHES, json={"requests": requests})

    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
