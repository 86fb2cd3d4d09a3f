"""Checks objects and events against the rules of Open Responses (2026-04-24) and of OpenAI's
clients."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

REQUIRED: Final = frozenset(
    {
        *("id", "created_at", "completed_at", "status", "incomplete_details", "model"),
        *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice"),
        *("truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty"),
        *("frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage"),
        *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier"),
        *("safety_identifier", "prompt_cache_key"),
    }
)
NULLABLE: Final = frozenset(
    {
        *("completed_at", "incomplete_details", "previous_response_id", "instructions", "error"),
        *("reasoning", "usage", "max_output_tokens", "max_tool_calls", "safety_identifier"),
        *("prompt_cache_key", "metadata"),
    }
)
STATUSES: Final = frozenset(
    {"queued", "in_progress", "completed", "failed", "incomplete", "cancelled"}
)
ITEMS: Final = frozenset(
    {"message", "function_call", "function_call_output", "reasoning", "compaction"}
)
"""Item types of Open Responses. Other types occur only with hosted tools."""
HOSTED: Final = frozenset({"file_search_call", "mcp_list_tools", "mcp_call"})
POSITION: Final = frozenset({"item_id", "output_index"})
CONTENT: Final = POSITION | {"content_index"}
SUMMARY: Final = POSITION | {"summary_index"}
EVENT_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "response.output_item.added": frozenset({"output_index", "item"}),
    "response.output_item.done": frozenset({"output_index", "item"}),
    "response.content_part.added": CONTENT | {"part"},
    "response.content_part.done": CONTENT | {"part"},
    "response.output_text.delta": CONTENT | {"delta"},
    "response.output_text.done": CONTENT | {"text"},
    "response.refusal.delta": CONTENT | {"delta"},
    "response.refusal.done": CONTENT | {"refusal"},
    "response.function_call_arguments.delta": POSITION | {"delta"},
    "response.function_call_arguments.done": POSITION | {"arguments", "name"},
    "response.reasoning_summary_part.added": SUMMARY | {"part"},
    "response.reasoning_summary_part.done": SUMMARY | {"part"},
    "response.reasoning_summary_text.delta": SUMMARY | {"delta"},
    "response.reasoning_summary_text.done": SUMMARY | {"text"},
}
LIFECYCLE: Final = frozenset(
    f"response.{word}"
    for word in ("created", "queued", "in_progress", "completed", "incomplete", "failed")
)
FINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})


def check_response(response: Mapping[str, Any]) -> None:
    assert response.keys() >= REQUIRED, REQUIRED - response.keys()
    nulls = {name for name in REQUIRED if response[name] is None}
    assert nulls <= NULLABLE, nulls - NULLABLE
    assert response["object"] == "response"
    assert response["status"] in STATUSES
    for name in ("created_at", "top_logprobs"):
        assert type(response[name]) is int, name
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        assert isinstance(response[name], int | float), name
    for name in ("background", "store", "parallel_tool_calls"):
        assert isinstance(response[name], bool), name
    assert response["truncation"] in ("auto", "disabled")
    assert response["text"]["format"]["type"] in ("text", "json_object", "json_schema")
    assert isinstance(response["instructions"], str | None)
    assert isinstance(response["service_tier"], str)
    _check_usage(response["usage"])
    if response["reasoning"] is not None:
        assert response["reasoning"].keys() >= {"effort", "summary"}
    for tool in response["tools"]:
        if tool["type"] == "function":
            assert tool.keys() >= {"name", "description", "parameters", "strict"}
    for item in response["output"]:
        check_item(item)


def check_item(item: Mapping[str, Any]) -> None:
    kind = item["type"]
    assert kind in ITEMS | HOSTED | {"custom_tool_call", "mcp_approval_request"}, kind
    assert item["id"]
    if kind == "reasoning":
        assert all(
            item[name] is not None for name in ("content", "encrypted_content") & item.keys()
        )
        assert all(part["type"] == "summary_text" for part in item["summary"])
    if kind == "function_call":
        assert item.keys() >= {"call_id", "name", "arguments", "status"}
    if kind == "message":
        assert item.get("phase", "") is not None
        assert item["status"] in ("in_progress", "completed", "incomplete")
        for part in item["content"]:
            check_part(part)


def check_part(part: Mapping[str, Any]) -> None:
    if part["type"] == "output_text":
        assert isinstance(part["text"], str)
        assert isinstance(part["annotations"], list)
        return
    assert part["type"] == "refusal", part


def check_event(event: Mapping[str, Any]) -> None:
    kind = event["type"]
    assert type(event["sequence_number"]) is int
    if kind == "error":
        assert event.keys() >= {"code", "message", "param"}
        assert event["error"].keys() >= {"type", "code", "message", "param"}
        return
    if kind in LIFECYCLE:
        check_response(event["response"])
        return
    assert event.keys() >= EVENT_KEYS.get(kind, POSITION), event
    if "item" in event:
        check_item(event["item"])
    if "part" in event and kind.startswith("response.content_part"):
        check_part(event["part"])


def check_stream(events: Sequence[Mapping[str, Any]], first: int = 0) -> None:
    numbers = [event["sequence_number"] for event in events]
    if events[-1]["type"] == "error":  # it is not stored, and has the number of the one before
        numbers[-1] += 1
    assert numbers == list(range(first, first + len(events)))
    for event in events:
        check_event(event)
    kinds = [event["type"] for event in events]
    assert kinds[-1] in FINAL
    assert not FINAL & set(kinds[:-1])
    if first == 0:
        assert kinds[0] == "response.created"
        _check_items(events)


def _check_items(events: Sequence[Mapping[str, Any]]) -> None:
    """Check that items are added once and done with the same id, and that deltas add up."""
    added: dict[int, Mapping[str, Any]] = {}
    texts: dict[tuple[str, int], str] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] not in added
                added[event["output_index"]] = event["item"]
            case "response.output_item.done":
                first = added[event["output_index"]]
                assert (event["item"]["id"], event["item"]["type"]) == (first["id"], first["type"])
            case "response.content_part.added":
                texts[event["item_id"], event["content_index"]] = ""
            case "response.output_text.delta":
                texts[event["item_id"], event["content_index"]] += event["delta"]
            case "response.output_text.done":
                assert texts[event["item_id"], event["content_index"]] == event["text"]


def _check_usage(usage: Mapping[str, Any] | None) -> None:
    if usage is not None:
        assert type(usage["input_tokens_details"]["cached_tokens"]) is int
        assert type(usage["output_tokens_details"]["reasoning_tokens"]) is int
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
