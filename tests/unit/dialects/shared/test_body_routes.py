"""Bodies that are sent to the route of another API."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from dialects.anthropic.message_request import parse_message, parse_token_count
from dialects.llama_server.completion import parse_continuation, parse_infill
from dialects.llama_server.scores import parse_embedding as parse_content
from dialects.ollama.embeddings import parse_embed
from dialects.ollama.requests import parse_chat as parse_ollama_chat
from dialects.ollama.requests import parse_generate
from dialects.openai.chat.chat_request import parse_chat
from dialects.openai.chat.completion_request import parse_completion
from dialects.openai.chat.embeddings import parse_embedding
from dialects.openai.responses.requests import parse_response
from svc_kit.errors import InvalidArgument, InvalidField

Fields = Mapping[str, Any]
PARSERS: Final[Mapping[str, Callable[[Fields], object]]] = {
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
    "/v1/embeddings": parse_embedding,
    "/v1/responses": parse_response,
    "/v1/messages": parse_message,
    "/api/chat": parse_ollama_chat,
    "/api/generate": parse_generate,
    "/api/embed": parse_embed,
    "/completion": parse_continuation,
    "/infill": parse_infill,
    "/embedding": parse_content,
}
USER: Final = {"role": "user", "content": "Hi"}
FUNCTION: Final = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALL: Final = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT: Final = {"role": "tool", "tool_call_id": "1", "content": "x"}
IMAGE: Final = {"type": "image_url", "image_url": {"url": "data:,"}}
TOOL_USE: Final = {"type": "tool_use", "id": "1", "name": "f", "input": {}}


def chat(*messages: Fields, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER, *messages], **fields}


CHATS: Final[list[tuple[str, Fields]]] = [
    ("/v1/chat/completions", chat(response_format={"type": "json_object"})),
    ("/v1/chat/completions", chat(stream=True, stream_options={})),
    ("/v1/chat/completions", chat({"role": "user", "content": [IMAGE]}, max_tokens=5)),
    ("/v1/chat/completions", chat({"role": "assistant", "tool_calls": [CALL]}, RESULT)),
    ("/v1/messages", chat(max_tokens=5, system="Be brief.")),
    ("/v1/messages", chat({"role": "assistant", "content": [TOOL_USE]}, max_tokens=5)),
    ("/v1/messages", chat(max_tokens=5, tools=[{"name": "f", "input_schema": {}}])),
    ("/api/chat", chat(options={"temperature": 0})),
    ("/api/chat", chat(format="json", think=True)),
    ("/api/chat", chat({"role": "user", "content": "", "images": ["aaaa"]})),
]
OTHERS: Final[list[tuple[str, Fields]]] = [
    ("/v1/completions", {"model": "m", "prompt": "Hi", "max_tokens": 5}),
    ("/v1/embeddings", {"model": "m", "input": "Hi", "encoding_format": "base64"}),
    ("/v1/responses", {"model": "m", "input": "Hi", "instructions": "Be brief."}),
    ("/api/generate", {"model": "m", "prompt": "Hi", "raw": True}),
    ("/api/generate", {"model": "m", "prompt": "Hi", "system": "Be brief."}),
    ("/api/embed", {"model": "m", "input": "Hi", "options": {"num_ctx": 5}}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "model": "m"}),
    ("/embedding", {"content": "Hi", "model": "m"}),
    ("/completion", {"prompt": "Hi", "n_predict": 3, "id_slot": 1, "model": "m"}),
]
ACCEPTED: Final = {("/completion", "/v1/completions")}
"""OpenAI's route takes llama-server's parameters."""


@pytest.mark.parametrize("route", PARSERS)
@pytest.mark.parametrize(("meant", "body"), CHATS + OTHERS)
def test_a_body_of_another_route_is_refused_with_the_name_of_that_route(
    route: str, meant: str, body: Fields
) -> None:
    """For each pair of routes."""
    if route == meant or (meant, route) in ACCEPTED:
        PARSERS[route](body)
        return
    with pytest.raises(InvalidField, match=rf"send a body that has it to .*{meant}(,| or |$)"):
        PARSERS[route](body)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (chat(stop=["x"]), "stop"),
        (chat({"role": "developer", "content": "x"}), "messages[1].role"),
        (chat(tools=[FUNCTION]), "tools[0].function"),
        (chat({"role": "user", "content": [TOOL_USE, IMAGE]}), "messages[1].content[1].type"),
    ],
)
def test_the_field_that_the_route_does_not_have_is_named(body: Fields, field: str) -> None:
    """Also inside of lists, and by the route that counts tokens."""
    for parse in (parse_message, parse_token_count):
        with pytest.raises(InvalidField) as refused:
            parse({**body, "max_tokens": 5})
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", chat(temperature="warm", keep_alive=1, think=False)),
        ("/api/chat", chat(tools=[FUNCTION], options=3, format=None, stop=None)),
        ("/v1/responses", {"input": "Hi", "tools": [FUNCTION], "temperature": "warm"}),
        ("/v1/completions", {"model": "m", "prompt": "Hi", "messages": [USER]}),
    ],
)
def test_other_errors_of_a_body_name_no_route(route: str, body: Fields) -> None:
    """Parameters that both APIs have do not say to which one a body belongs."""
    with pytest.raises(InvalidArgument) as refused:
        PARSERS[route](body)
    assert "send a body" not in str(refused.value)
