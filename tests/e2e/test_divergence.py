"""Where a prompt differs from what is cached: told to the project that sent both, in usage, in the
list of requests, in logs, after a restart; and a header that changes in each turn of a session.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from corral.inference.v1 import chat_pb2 as chat
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb

from corral_cli.up.children import ensure_token
from svc_kit.auth.authenticator import ServiceToken
from tests.support.archives import Caller
from tests.support.rpc import Answer, connect, gather, make_chat, user
from tests.support.services import MODEL, Corral, run_inference

pytestmark = pytest.mark.e2e

RULES = [f"Rule {number} of the house is to be kind to animals." for number in range(60)]
HEADER = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli;"
TOOL = chat.Tool(name="look", description="Looks at a place.")
SETTINGS = {
    "engine.slots": 2,
    "snapshots.archive_scope": "all",
    "prefix_groups": {"team": {"projects": ["red", "green"]}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ensure_token(tmp_path / "token")
    return tmp_path


def ask(rules: list[str], description: str = TOOL.description) -> pb.ChatRequest:
    system = chat.ChatMessage(
        role=chat.ROLE_SYSTEM, parts=[chat.ContentPart(text="\n".join(rules))]
    )
    stopping = {"max_tokens": 4, "ignore_eos": True}
    request = make_chat(system, user("\n".join(RULES[:30])), stopping=stopping)
    request.conversation.tools.add(name=TOOL.name, description=description)
    return request


def with_rule(number: int, text: str) -> list[str]:
    return [*RULES[:number], text, *RULES[number + 1 :]]


async def send(caller: Caller, request: pb.ChatRequest, project: str = "red") -> Answer:
    return await gather(caller.rpc.inference.Chat(request, metadata=caller.metadata(project)))


def run_server(folder: Path) -> Iterator[str]:
    settings = {**SETTINGS, "service_token_file": str(folder / "token")}
    with run_inference(folder, settings) as service:
        yield service.target


async def test_the_changed_text_is_told_to_its_project_only(folder: Path) -> None:
    """A group of projects shares prefixes, but is not told what changed; nor are others."""
    token = ServiceToken.read(folder / "token").secret
    for target in run_server(folder):
        async with connect(target) as rpc:
            caller = Caller(rpc, token)
            await caller.wait_for_model_digest()
            first = await send(caller, ask(RULES))
            changed = await send(caller, ask(with_rule(10, "Rule 10 is to be quiet.")))
            in_tool = await send(caller, ask(RULES, "Looks at a picture."))
            foreign = [
                await send(caller, ask(with_rule(5, "Rule 5 is secret.")), project)
                for project in ("green", "blue")
            ]
            endless = ask(with_rule(20, "Rule 20 is to talk."))
            endless.options.stopping.ClearField("max_tokens")
            stream = caller.rpc.inference.Chat(endless, metadata=caller.metadata("red"))
            await anext(aiter(stream))
            live = await listed_divergence(caller)
            stream.cancel()
    for target in run_server(folder):
        async with connect(target) as rpc:
            caller = Caller(rpc, token)
            await caller.wait_for_model_digest()
            restarted = await send(caller, ask(with_rule(50, "Rule 50 is to wait.")))

    found = changed.done.usage.divergence
    assert not first.done.usage.HasField("divergence")
    assert found.field == "messages[0].content"
    assert found.cached_text.lstrip().startswith("of the house")
    assert found.prompt_text.lstrip().startswith("is to be quiet")
    assert found.token_index == changed.done.usage.cached_tokens
    assert 0 < found.lost_tokens < first.done.usage.prompt_tokens - found.token_index
    assert in_tool.done.usage.divergence.field == "tools[0]"
    assert foreign[0].done.usage.cached_tokens > 0
    assert foreign[1].done.usage.cached_tokens == 0
    assert not any(answer.done.usage.HasField("divergence") for answer in foreign)
    assert (live.field, live.cached_text, live.prompt_text) == ("messages[0].content", "", "")
    assert restarted.done.usage.divergence.field == "messages[0].content"
    assert restarted.done.usage.cache_source == generation.CACHE_SOURCE_DISK


async def listed_divergence(caller: Caller) -> generation.CacheDivergence:
    """That of the only live request, once it is known."""
    async with asyncio.timeout(30):
        while True:
            answer = await caller.rpc.engine.ListRequests(
                engine_pb.ListRequestsRequest(), metadata=caller.metadata("red")
            )
            (request,) = answer.requests
            if request.HasField("divergence"):
                return request.divergence


async def test_a_header_that_changes_each_turn_costs_nothing(http: httpx.AsyncClient) -> None:
    """In 30 turns of Messages, all that the turn before has sent is reused."""
    messages: list[dict[str, str]] = []
    lacks, sent = [], 0
    for turn in range(30):
        header = f"{HEADER} cch={turn:05x};"
        blocks = [{"type": "text", "text": text} for text in (header, "\n".join(RULES[:20]))]
        messages.append({"role": "user", "content": f"This is question {turn}."})
        body = {"model": MODEL, "system": blocks, "messages": messages, "max_tokens": 8}
        answer = (await http.post("/v1/messages", json=body)).json()
        usage = answer["usage"]
        lacks.append(sent - usage["cache_read_input_tokens"])
        sent = usage["cache_read_input_tokens"] + usage["input_tokens"]
        text = "".join(block.get("text", "") for block in answer["content"])
        messages.append({"role": "assistant", "content": text or "Yes."})

    assert max(lacks[1:]) < 8  # the empty thought after which the model answers is not sent back
    assert sent > 800


async def test_logs_have_the_field_that_changed(server: Corral, http: httpx.AsyncClient) -> None:
    """The line of the gateway, and that of the inference service."""
    mark = server.program.bookmark()
    for rules in (RULES, with_rule(30, "Rule 30 is to write.")):
        system = {"role": "system", "content": "\n".join(rules)}
        messages = [system, {"role": "user", "content": "Hello!"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 4}
        (await http.post("/v1/chat/completions", json=body)).raise_for_status()

    for message in ("request", "call ended"):
        field = {"divergence_field": "messages[0].content"}
        await server.program.line(f"^{message}$", after=mark, **field)


async def test_lines_that_no_setting_names_stay(folder: Path) -> None:
    request = pb.RenderChatRequest(conversation=ask([f"{HEADER} cch=1;"]).conversation)
    with run_inference(folder, {"removed_prompt_lines": []}) as service:
        async with connect(service.target) as rpc:
            rendered = await rpc.inference.RenderChat(request)

    assert f"{HEADER} cch=1;" in rendered.text
