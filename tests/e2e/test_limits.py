"""Keys and their limits in a running Corral, as the official client and other callers see them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc.aio
import openai
import pytest
from corral.control.v1 import audit_service_pb2 as audit_pb
from corral.control.v1 import file_service_pb2
from corral.control.v1 import limit_service_pb2 as pb
from corral.control.v1.audit_service_pb2_grpc import AuditServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.usage_service_pb2 import UsageSum
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1.inference_service_pb2 import ChatRequest
from openai.types import Batch
from openai.types.chat import ChatCompletion

from svc_kit.errors import ApiKeyRevoked
from svc_kit.rpc.client import open_channel, translate_errors
from tests.support.operators import ADMIN, Operator
from tests.support.rpc import CAPITAL, PARIS, Rpc, gather, make_chat, read_error
from tests.support.services import MODEL, Corral, corral_up

pytestmark = pytest.mark.e2e
MESSAGES: Any = [{"role": "user", "content": CAPITAL}]


@dataclass(frozen=True)
class Limited:
    corral: Corral
    operator: Operator

    async def key(self, project: str) -> tuple[str, str]:
        """Create a project with a key; return the key and its id."""
        await self.operator.create_project(project)
        created = await self.operator.create_key(project)
        return created.secret, created.key.id

    async def usage(self, key_id: str, num_requests: int) -> UsageSum:
        """The usage of a key, once that many requests are reported."""
        async with asyncio.timeout(50):
            while True:
                sums = (await self.operator.list_usage(key=key_id)).sums
                if sum(each.counts.requests for each in sums) >= num_requests:
                    return sums[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    folder = tmp_path_factory.mktemp("limited")
    prices = {"*": {"prompt": 1, "completion": 2.5}}
    inference = {"key_cache_s": 0, "usage_interval_s": 0.1}
    with corral_up(
        folder,
        "--require-keys",
        "--embedding-model",
        MODEL,
        inference=inference,
        gateway={"key_cache_s": 0},
        control={"prices": prices},
    ) as corral:
        yield corral


@pytest.fixture
async def limited(
    server: Corral, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Limited]:
    folder = next(tmp_path_factory.getbasetemp().glob("limited*"))
    token = (folder / "data" / "service-token").read_text().strip()
    async with open_channel(server.control, token=token) as channel:
        yield Limited(server, Operator(channel))


async def chat(client: openai.AsyncOpenAI, **fields: Any) -> ChatCompletion:
    answer: ChatCompletion = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, **fields
    )
    return answer


async def wait_until_refused(client: openai.AsyncOpenAI) -> openai.RateLimitError:
    """Send chats until a new limit refuses one."""
    async with asyncio.timeout(50):
        while True:
            try:
                await chat(client, max_tokens=1)
            except openai.RateLimitError as error:
                return error


async def wait_until_limited(client: openai.AsyncOpenAI, limit_id: str) -> None:
    """Send chats until a new limit applies to them."""
    async with asyncio.timeout(50):
        limited = False
        while not limited:
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=MESSAGES, max_tokens=1
            )
            limited = limit_id in raw.headers.get("ratelimit", "")


async def wait_for_batch(client: openai.AsyncOpenAI, *prompts: str) -> Batch:
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": MODEL, "messages": [{"role": "user", "content": prompt}]},
        }
        for number, prompt in enumerate(prompts)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = await client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    async with asyncio.timeout(50):
        while batch.status not in ("completed", "failed"):
            batch = await client.batches.retrieve(batch.id)
    return batch


async def test_the_official_client_sees_a_rate_limit(limited: Limited) -> None:
    """Headers of each response, then RateLimitError with the limit and when to retry."""
    secret, key_id = await limited.key("red")
    await limited.operator.create_limit("red-calls", "REQUESTS", 3, key=key_id)
    async with limited.corral.sdk(secret) as client:
        headers, refused = [], None
        async with asyncio.timeout(50):
            while refused is None:
                try:
                    raw = await client.chat.completions.with_raw_response.create(
                        model=MODEL, messages=MESSAGES, max_tokens=1
                    )
                    headers.append(raw.headers)
                except openai.RateLimitError as error:
                    refused = error
    limits = [each for each in headers if "red-calls" in each.get("ratelimit", "")]

    assert [each["x-ratelimit-remaining-requests"] for each in limits] == ["2", "1", "0"]
    assert {each["x-ratelimit-limit-requests"] for each in limits} == {"3"}
    assert re.fullmatch(r"(1m|[1-9][0-9]?)[0-9.]*s", limits[2]["x-ratelimit-reset-requests"])
    assert '"red-calls";q=3;w=60' in limits[0]["ratelimit-policy"]
    assert (refused.code, refused.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert "'red-calls'" in refused.message
    assert refused.response.headers["x-ratelimit-remaining-requests"] == "0"
    assert 0 < int(refused.response.headers["retry-after"]) <= 20


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK deprecates Assistants
async def test_responses_and_runs_have_the_headers_too(limited: Limited) -> None:
    """Whole responses, streams and runs; what is leased in advance counts as used."""
    secret, key_id = await limited.key("violet")
    await limited.operator.create_limit("violet-calls", "REQUESTS", 50, key=key_id)
    async with limited.corral.sdk(secret) as client:
        await wait_until_limited(client, "violet-calls")
        answers: list[Any] = [
            await client.responses.with_raw_response.create(
                model=MODEL, input=CAPITAL, store=False, max_output_tokens=1
            ),
            await client.responses.with_raw_response.create(
                model=MODEL, input=CAPITAL, stream=True, max_output_tokens=1
            ),
        ]
        assistant = await client.beta.assistants.create(model=MODEL)
        create_run = client.beta.threads.with_raw_response.create_and_run
        answers += [
            await create_run(assistant_id=assistant.id, thread={"messages": MESSAGES}),
            await create_run(assistant_id=assistant.id, thread={"messages": MESSAGES}, stream=True),
        ]
    left = [int(each.headers["x-ratelimit-remaining-requests"]) for each in answers]

    assert all(40 <= each < 50 for each in left)
    assert '"violet-calls";q=50;w=60' in answers[3].headers["ratelimit-policy"]


async def test_vector_stores_have_the_headers_too(limited: Limited) -> None:
    """Stores with files, files, file batches and searches, whose model the control service calls;
    an empty store has none."""
    secret, key_id = await limited.key("indigo")
    await limited.operator.create_limit("indigo-calls", "REQUESTS", 60, key=key_id)
    async with limited.corral.sdk(secret) as client:
        await wait_until_limited(client, "indigo-calls")
        file = await client.files.create(file=("a.txt", CAPITAL.encode()), purpose="user_data")
        stores = client.vector_stores.with_raw_response
        empty = await stores.create()
        created = await stores.create(file_ids=[file.id])
        store_id = empty.parse().id
        add: Any = {"vector_store_id": store_id, "file_id": file.id}
        added = await client.vector_stores.files.with_raw_response.create(**add)
        batch = await client.vector_stores.file_batches.with_raw_response.create(
            store_id, file_ids=[file.id]
        )
        await client.vector_stores.files.poll(file.id, vector_store_id=store_id)
        found = await stores.search(store_id, query="capital")
    answers: list[Any] = [created, added, batch, found]
    left = [int(each.headers["x-ratelimit-remaining-requests"]) for each in answers]

    assert "x-ratelimit-limit-requests" not in empty.headers
    assert all(0 < each < 60 for each in left)
    assert '"indigo-calls";q=60;w=60' in found.headers["ratelimit-policy"]
    assert len(found.parse().data) == 1


async def test_a_budget_of_cost_refuses_every_way_of_the_key(limited: Limited, rpc: Rpc) -> None:
    """insufficient_quota, which clients do not retry: over HTTP and gRPC, in batch lines and in
    background responses, which have the key of their request. A picture is not decoded first."""
    secret, key_id = await limited.key("poor")
    await limited.operator.create_limit("poor-spend", "COST", 1, "MONTH", key=key_id)
    async with limited.corral.sdk(secret) as client:
        refused = await wait_until_refused(client)
        batch = await wait_for_batch(client, CAPITAL)
        output = await client.files.content(batch.error_file_id or "")
        response = await client.responses.create(model=MODEL, input=CAPITAL, background=True)
        async with asyncio.timeout(50):
            while response.status in ("queued", "in_progress"):
                response = await client.responses.retrieve(response.id)
    bearer = (("authorization", f"Bearer {secret}"),)
    over_grpc = await read_error(rpc.inference.Chat(make_chat(), metadata=bearer))
    unread: Any = {"messages": [{"role": 3, "parts": [{"image": {"data": b"no picture"}}]}]}
    with_picture = await read_error(
        rpc.inference.Chat(ChatRequest(model=MODEL, conversation=unread), metadata=bearer)
    )

    assert (refused.code, refused.type) == ("insufficient_quota", "insufficient_quota")
    assert refused.response.headers["x-should-retry"] == "false"
    assert int(refused.response.headers["retry-after"]) <= 31 * 86400
    assert "0.000000001 cost per month" in refused.message
    assert over_grpc.reason == with_picture.reason == "BUDGET_EXCEEDED"
    assert over_grpc.metadata["name"] == "poor-spend"
    assert json.loads(output.text)["response"]["body"]["error"]["code"] == "insufficient_quota"
    assert response.status == "failed"


async def test_a_key_works_everywhere_until_it_is_revoked(limited: Limited, rpc: Rpc) -> None:
    """Without a restart of a service. Others are refused, also on loopback."""
    secret, key_id = await limited.key("revoked")
    bearer = (("authorization", f"Bearer {secret}"),)
    over_grpc = await gather(rpc.inference.Chat(make_chat(), metadata=bearer))
    async with (
        limited.corral.sdk(secret) as client,
        open_channel(limited.corral.control, token=secret) as control,
    ):
        answer = await chat(client)
        files = FileServiceStub(control)
        await files.ListFiles(file_service_pb2.ListFilesRequest())
        await limited.operator.revoke(key_id)
        with pytest.raises(ApiKeyRevoked), translate_errors():
            await files.ListFiles(file_service_pb2.ListFilesRequest())
        refused = await read_error(rpc.inference.Chat(make_chat(), metadata=bearer))
        with pytest.raises(openai.AuthenticationError) as revoked:
            await chat(client)
    async with limited.corral.sdk("none") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await chat(stranger)

    assert over_grpc.text[0] == answer.choices[0].message.content == PARIS
    assert refused.reason == "API_KEY_REVOKED"
    assert revoked.value.code == "api_key_revoked"
    assert (await read_error(rpc.inference.Chat(make_chat()))).reason == "API_KEY_MISSING"


async def test_usage_of_every_way_is_counted_once_for_the_key(limited: Limited, rpc: Rpc) -> None:
    """It is the sum of what callers are told, with its cost at the prices of the settings."""
    secret, key_id = await limited.key("rich")
    async with limited.corral.sdk(secret) as client:
        answer = await chat(client)
        batch = await wait_for_batch(client, "Say hello.", CAPITAL)
        response = await client.responses.create(model=MODEL, input=CAPITAL, background=True)
        async with asyncio.timeout(50):
            while response.status != "completed":
                response = await client.responses.retrieve(response.id)
    bearer = (("authorization", f"Bearer {secret}"),)
    over_grpc = await gather(rpc.inference.Chat(make_chat(), metadata=bearer))
    used = await limited.usage(key_id, 5)

    assert answer.usage
    assert response.usage
    assert batch.usage
    told = over_grpc.done.usage
    prompt = answer.usage.prompt_tokens + batch.usage.input_tokens
    prompt += response.usage.input_tokens + told.prompt_tokens
    completion = answer.usage.completion_tokens + batch.usage.output_tokens
    completion += response.usage.output_tokens + told.completion_tokens
    assert (used.project, used.counts.requests) == ("rich", 5)
    assert used.counts.prompt_tokens == prompt
    assert used.counts.completion_tokens == completion
    assert used.cost_nanos == 1000 * prompt + 2500 * completion


async def test_a_limit_in_shadow_mode_refuses_nothing(limited: Limited) -> None:
    """Requests beyond it are logged with its id."""
    secret, key_id = await limited.key("green")
    shadow = {"key": key_id, "mode": pb.Limit.MODE_SHADOW}
    await limited.operator.create_limit("green-calls", "REQUESTS", 1, **shadow)
    after = limited.corral.program.bookmark()
    async with limited.corral.sdk(secret) as client:
        logged = asyncio.create_task(
            limited.corral.program.line("beyond a limit in shadow mode", after=after)
        )
        while not logged.done():
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=MESSAGES, max_tokens=1
            )
            assert "green-calls" not in raw.headers.get("ratelimit", "")
    assert "green-calls" in (await logged).string


async def test_each_key_has_slots_of_its_own(limited: Limited) -> None:
    """A limit of concurrent requests per key refuses a second stream, not that of another key;
    the slot is free when the stream ends."""
    first, _ = await limited.key("slots")
    second = (await limited.operator.create_key("slots")).secret
    await limited.operator.create_limit(
        "streams", "CONCURRENT_REQUESTS", 1, "", project="slots", per=["SUBJECT_KEY"], model=MODEL
    )
    endless: Any = {"stream": True, "max_tokens": 9000, "extra_body": {"ignore_eos": True}}
    async with limited.corral.sdk(first) as client, limited.corral.sdk(second) as other:
        refused: openai.RateLimitError | None = None
        async with asyncio.timeout(50):
            while refused is None:
                stream = await client.chat.completions.create(
                    model=MODEL, messages=MESSAGES, **endless
                )
                try:
                    await chat(client, max_tokens=1)
                    await stream.close()
                except openai.RateLimitError as error:
                    refused = error
            await chat(other, max_tokens=1)
            await stream.close()
            while True:  # the gateway cancels the call after the client has disconnected
                try:
                    await chat(client, max_tokens=1)
                    break
                except openai.RateLimitError:
                    continue
    assert "1 concurrent requests" in refused.message
    assert refused.response.headers["ratelimit-policy"] == '"streams";q=1;qu="concurrent-requests"'


async def test_acts_on_the_inference_service_are_in_the_audit_log(
    limited: Limited, rpc: Rpc
) -> None:
    """With the key that called, once control has them; calls that are refused are none."""
    created = await limited.operator.create_key(name="boss", scopes=[ADMIN])
    bearer = (("authorization", f"Bearer {created.secret}"),)
    await rpc.engine.LoadModel(engine_pb.LoadModelRequest(model=MODEL), metadata=bearer)
    unknown = engine_pb.LoadModelRequest(model="unknown")
    with pytest.raises(grpc.aio.AioRpcError):
        await rpc.engine.LoadModel(unknown, metadata=bearer)
    stub = AuditServiceStub(limited.operator.channel)
    wanted = audit_pb.ListAuditEventsRequest(actor=created.key.id)
    async with asyncio.timeout(50):
        while not (events := (await limited.operator.call(stub.ListAuditEvents, wanted)).events):
            continue
    assert [(each.method, each.target) for each in events] == [("EngineService/LoadModel", MODEL)]
