"""The OpenAPI document and its page."""

import re

from httpx import AsyncClient

from dialects.openai.chat.chat_request import ChatCompletionBody
from dialects.shared.parameters import policy_of


async def test_the_page_has_no_external_references(client: AsyncClient) -> None:
    """It works without internet access."""
    page = await client.get("/docs")

    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert re.findall(r"https?://", page.text) == []
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_the_document_has_every_route_and_field(client: AsyncClient) -> None:
    """With request bodies and their fields."""
    document = (await client.get("/openapi.json")).json()

    assert document["paths"].keys() == {
        "/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches",
        "/v1/messages/batches/{batch_id}", "/v1/messages/batches/{batch_id}/cancel",
        "/v1/messages/batches/{batch_id}/results",
        "/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/tags", "/api/show",
        "/api/ps", "/api/version", "/api/pull", "/api/delete", "/api/copy", "/api/create",
        "/api/push",
        "/apply-template", "/completion", "/completions", "/detokenize", "/embedding",
        "/embeddings", "/infill", "/props", "/rerank", "/reranking", "/score", "/slots",
        "/slots/{slot}", "/tokenize", "/tokenizer_info", "/v1/chat/completions/input_tokens",
        "/v1/reranking", "/v1/score", "/v2/rerank",
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models",
        "/v1/models/{model}", "/v1/rerank",
        "/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content",
        "/v1/uploads", "/v1/uploads/{upload_id}/parts", "/v1/uploads/{upload_id}/complete",
        "/v1/uploads/{upload_id}/cancel",
        "/v1/adapters", "/v1/adapters/{adapter}", "/v1/adapters/{adapter}/retry",
        "/lora-adapters", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
        "/admin/loras", "/admin/loras/{name}",
        "/admin/audit", "/admin/projects", "/admin/keys", "/admin/keys/rotate",
        "/admin/keys/{key_id}",
        "/admin/limits",
        "/admin/limits/{limit_id}", "/admin/usage", "/admin/models", "/admin/models/load",
        "/admin/models/unload", "/admin/server", "/admin/load", "/admin/requests",
        "/admin/requests/abort",
        "/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel",
        "/v1/vector_stores", "/v1/vector_stores/{store_id}", "/v1/vector_stores/{store_id}/search",
        "/v1/vector_stores/{store_id}/files", "/v1/vector_stores/{store_id}/files/{file_id}",
        "/v1/vector_stores/{store_id}/files/{file_id}/content",
        "/v1/vector_stores/{store_id}/file_batches",
        "/v1/vector_stores/{store_id}/file_batches/{batch_id}",
        "/v1/vector_stores/{store_id}/file_batches/{batch_id}/cancel",
        "/v1/vector_stores/{store_id}/file_batches/{batch_id}/files",
        "/v1/assistants", "/v1/assistants/{assistant_id}",
        "/v1/threads", "/v1/threads/{thread_id}", "/v1/threads/{thread_id}/migrate",
        "/v1/threads/{thread_id}/messages", "/v1/threads/{thread_id}/messages/{message_id}",
        "/v1/threads/runs", "/v1/threads/{thread_id}/runs", "/v1/threads/{thread_id}/runs/{run_id}",
        "/v1/threads/{thread_id}/runs/{run_id}/cancel",
        "/v1/threads/{thread_id}/runs/{run_id}/submit_tool_outputs",
        "/v1/threads/{thread_id}/runs/{run_id}/events",
        "/v1/threads/{thread_id}/runs/{run_id}/steps",
        "/v1/threads/{thread_id}/runs/{run_id}/steps/{step_id}",
        "/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact",
        "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel",
        "/v1/responses/{response_id}/input_items",
        "/v1/conversations", "/v1/conversations/{conversation_id}",
        "/v1/conversations/{conversation_id}/items",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "/v1/audio/transcriptions", "/v1/audio/translations", "/health", "/ready",
    }  # fmt: skip
    schemas = document["components"]["schemas"]
    fields = schemas["ChatCompletionBody"]["properties"]
    policy = policy_of(ChatCompletionBody)
    assert fields.keys() == ChatCompletionBody.model_fields.keys() | policy.keys()
    assert fields["user"]["description"].startswith("Ignored: ")
    chat = document["paths"]["/v1/chat/completions"]["post"]
    schema = chat["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ChatCompletionBody"}
    assert chat["security"] == [{"key": []}]
    assert "text/event-stream" in chat["responses"]["200"]["content"]


async def test_every_reference_resolves(client: AsyncClient) -> None:
    """For generators of clients."""
    answer = await client.get("/openapi.json")

    schemas = answer.json()["components"]["schemas"].keys()
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', answer.text))
    assert named <= schemas


async def test_every_integer_has_a_maximum(client: AsyncClient) -> None:
    """The fields of protos are limited."""
    document = (await client.get("/openapi.json")).json()
    unbounded = {
        f"{model}.{name}"
        for model, schema in document["components"]["schemas"].items()
        for name, field in schema.get("properties", {}).items()
        for each in (field, *field.get("anyOf", ()))
        if each.get("type") == "integer" and "maximum" not in each
    }

    assert unbounded == set()
