"""Traces of real processes, received by OpenTelemetry's own service."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from tests.support.mcp_server import LABEL, Shop, run_shop
from tests.support.otlp import Collector, ReceivedSpan, run_collector
from tests.support.services import MODEL, corral_up

pytestmark = pytest.mark.e2e

PARENT: Final = "00f067aa0ba902b7"
CHAT, BACKGROUND, BATCH, UNSAMPLED, REFUSED, RUN = (f"{number:032x}" for number in range(1, 7))
"""Trace ids of the requests."""
SECRET: Final = "What is the capital of France?"
MESSAGES: Final = [{"role": "user", "content": SECRET}]
TOOL: Final[dict[str, Any]] = {
    "type": "mcp",
    "server_label": LABEL,
    "require_approval": "never",
    "allowed_tools": ["order"],
}
JSON_NAMES: Final = {
    value
    for name, value in vars(gen_ai_attributes).items()
    if name.startswith("GEN_AI_") and isinstance(value, str)
}


@dataclass(frozen=True)
class Traced:
    """The spans of an installation that has stopped, and the bodies of its answers."""

    collector: Collector
    chat: dict[str, Any]
    batch: dict[str, Any]
    run: dict[str, Any]
    shop: Shop

    def root(self, trace_id: str) -> ReceivedSpan:
        """The first span of a trace, which is below the caller's."""
        (root,) = [
            span
            for span in self.collector.trace(trace_id)
            if span.proto.parent_span_id.hex() == PARENT
        ]
        return root

    def find(self, trace_id: str, name: str) -> ReceivedSpan:
        return next(span for span in self.collector.trace(trace_id) if span.name == name)


def headers(trace_id: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{PARENT}-{flags}"}


def run_requests(client: httpx.Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """Send the requests, wait for what runs in the background, and return two answers."""
    body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8}
    chat = client.post("/v1/chat/completions", json=body, headers=headers(CHAT)).json()
    client.post("/v1/chat/completions", json=body, headers=headers(UNSAMPLED, "00"))
    refused = body | {"model": "unknown"}
    client.post("/v1/chat/completions", json=refused, headers=headers(REFUSED))
    response: dict[str, Any] = {
        "model": MODEL,
        "input": "Order tea.",
        "tools": [TOOL],
        "tool_choice": {"type": "mcp", "server_label": LABEL},
        "max_tool_calls": 1,
        "temperature": 0,
        "max_output_tokens": 60,
        "background": True,
    }
    made = client.post("/v1/responses", json=response, headers=headers(BACKGROUND)).json()
    assert "status" in made, made
    while made["status"] in ("queued", "in_progress"):
        made = client.get(f"/v1/responses/{made['id']}").json()
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    files = {"file": ("lines.jsonl", json.dumps(line).encode())}
    file = client.post("/v1/files", files=files, data={"purpose": "batch"}).json()
    ordered = {
        "input_file_id": file["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    batch = client.post("/v1/batches", json=ordered, headers=headers(BATCH)).json()
    while batch["status"] in ("validating", "in_progress", "finalizing"):
        batch = client.get(f"/v1/batches/{batch['id']}").json()
    return chat, batch


def run_assistant(client: httpx.Client) -> dict[str, Any]:
    assistant = client.post("/v1/assistants", json={"model": MODEL}).json()
    body = {"assistant_id": assistant["id"], "thread": {"messages": MESSAGES}}
    run: dict[str, Any] = client.post("/v1/threads/runs", json=body, headers=headers(RUN)).json()
    while run["status"] in ("queued", "in_progress"):
        run = client.get(f"/v1/threads/{run['thread_id']}/runs/{run['id']}").json()
    return run


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """Run requests with traces, and stop: spans that have not been sent yet are sent then."""
    folder = tmp_path_factory.mktemp("traces")
    with run_collector() as collector, run_shop() as shop:
        control = {"mcp_servers": [{"label": LABEL, "url": shop.url}]}
        with (
            corral_up(folder, "--otlp-endpoint", collector.url, control=control) as corral,
            httpx.Client(base_url=corral.url, timeout=60, trust_env=False) as client,
        ):
            chat, batch = run_requests(client)
            run = run_assistant(client)
        yield Traced(collector, chat, batch, run, shop)


def test_a_chat_is_traced_from_http_to_the_tokens(traced: Traced) -> None:
    """Each span begins and ends in the one above it."""
    root = traced.root(CHAT)
    rpc = "corral.inference.v1.InferenceService/Chat"
    chat = f"chat {MODEL}"

    assert (root.service, root.kind) == ("corral-gateway", "SERVER")
    assert root.name == "POST /v1/chat/completions"
    phases: dict[str, Any] = {"prepare": {}, "queue": {}, "prefill": {}, "decode": {}}
    assert traced.collector.tree(root) == {rpc: {chat: phases}}
    assert traced.find(CHAT, rpc).service == "corral-inference"
    assert root.contains(traced.find(CHAT, rpc))
    assert traced.find(CHAT, rpc).contains(traced.find(CHAT, chat))
    assert all(traced.find(CHAT, chat).contains(traced.find(CHAT, name)) for name in phases)


def test_the_phases_are_those_of_the_answers_timings(traced: Traced) -> None:
    """Queue and prefill until the first token, then decode."""
    timings = traced.chat["timings"]

    assert traced.find(CHAT, "prefill").duration_s * 1000 == pytest.approx(
        timings["prompt_ms"], abs=1
    )
    assert traced.find(CHAT, "decode").duration_s * 1000 == pytest.approx(
        timings["predicted_ms"], abs=1
    )


def test_a_chats_attributes_have_the_names_of_the_genai_conventions(traced: Traced) -> None:
    """With the parameters in effect and the tokens that the caller was told."""
    attributes = traced.find(CHAT, f"chat {MODEL}").attributes
    usage = traced.chat["usage"]

    assert {name for name in attributes if name.startswith("gen_ai.")} <= JSON_NAMES
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == MODEL
    assert attributes["gen_ai.request.max_tokens"] == 8
    assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert attributes["gen_ai.response.finish_reasons"] == [
        traced.chat["choices"][0]["finish_reason"]
    ]
    assert 0 < attributes["gen_ai.response.time_to_first_chunk"] < 60


def test_a_job_continues_the_trace_of_the_request_that_queued_it(traced: Traced) -> None:
    """Over the job's row: turns, and the hosted tool between them, are below the job's span."""
    job = traced.find(BACKGROUND, "job response")
    create = "corral.control.v1.ResponseService/CreateResponse"
    below = traced.collector.children(job)
    tool = traced.find(BACKGROUND, "execute_tool order")

    assert (job.service, job.kind) == ("corral-control", "CONSUMER")
    assert job in traced.collector.children(traced.find(BACKGROUND, create))
    assert job.attributes["corral.job.outcome"] == "done"
    assert [span.name for span in below].count("corral.inference.v1.InferenceService/Chat") >= 1
    assert tool in below
    assert tool.attributes["gen_ai.tool.name"] == "order"
    assert {name for name in tool.attributes if name.startswith("gen_ai.")} <= JSON_NAMES


def test_a_tools_server_gets_the_trace_context(traced: Traced) -> None:
    """That of the span of the call, in the headers and in the message."""
    (traces,) = set(traced.shop.traces)
    tool = traced.find(BACKGROUND, "execute_tool order")

    assert traces == (f"00-{BACKGROUND}-{tool.proto.span_id.hex()}-01",) * 2


def test_a_run_is_the_invocation_of_an_agent(traced: Traced) -> None:
    """Between its job and the calls of the model, with the usage that the caller is told."""
    agent = traced.find(RUN, "invoke_agent")
    usage = traced.run["usage"]

    assert agent in traced.collector.children(traced.find(RUN, "job run"))
    assert list(traced.collector.tree(agent)) == ["corral.inference.v1.InferenceService/Chat"]
    assert {name for name in agent.attributes if name.startswith("gen_ai.")} <= JSON_NAMES
    assert agent.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert agent.attributes["gen_ai.agent.id"] == traced.run["assistant_id"]
    assert agent.attributes["gen_ai.conversation.id"] == traced.run["thread_id"]
    assert agent.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert agent.attributes["corral.run.outcome"] == "answered"


def test_a_batch_line_is_a_trace_of_its_own_with_a_link_to_the_batch(traced: Traced) -> None:
    """Batches have up to 50,000 lines; a trace of all would be too large to read."""
    (line,) = [span for span in traced.collector.spans if span.name == "batch line"]
    (link,) = line.proto.links

    assert link.trace_id.hex() == BATCH
    assert line.trace_id != BATCH
    assert line.attributes["corral.batch.id"] == traced.batch["id"]
    assert list(traced.collector.tree(line)) == ["corral.inference.v1.InferenceService/Chat"]


def test_a_caller_decides_whether_its_request_is_traced(traced: Traced) -> None:
    """By the flag in its trace context."""
    assert traced.collector.trace(UNSAMPLED) == []


def test_a_refused_request_has_its_reason(traced: Traced) -> None:
    """It is no error of the server."""
    chat = traced.find(REFUSED, "chat unknown")
    root = traced.root(REFUSED)

    assert chat.attributes["error.type"] == "MODEL_NOT_FOUND"
    assert root.attributes["http.response.status_code"] == 404
    assert root.proto.status.code == 0


def test_prompts_and_answers_are_not_in_spans(traced: Traced) -> None:
    """Unless the settings ask for it. Probes have no spans either."""
    text = "".join(str(span.proto) for span in traced.collector.spans)

    assert SECRET not in text
    assert traced.chat["choices"][0]["message"]["content"] not in text
    assert "Health" not in text
    assert "gen_ai.tool.call.arguments" not in text
