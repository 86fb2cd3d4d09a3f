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


async def test_the_document_has_every_field(client: AsyncClient) -> None:
    """Of request bodies, with the parameters that are ignored or refused."""
    document = (await client.get("/openapi.json")).json()

    schemas = document["components"]["schemas"]
    fields = schemas["ChatCompletionBody"]["properties"]
    policy = policy_of(ChatCompletionBody)
    assert fields.keys() == ChatCompletionBody.model_fields.keys() | policy.keys()
    assert fields["user"]["description"].startswith("Ignored: ")
    chat = document["paths"]["/v1/chat/completions"]["post"]
    schema = chat["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ChatCompletionBody"}
    assert chat["security"] == [{"key": []}]


async def test_every_integer_of_a_request_has_a_maximum(client: AsyncClient) -> None:
    """The fields of protos are limited."""
    document = (await client.get("/openapi.json")).json()
    unbounded = {
        f"{model}.{name}"
        for model, schema in document["components"]["schemas"].items()
        if schema.get("title")  # those of responses have none
        for name, field in schema.get("properties", {}).items()
        for each in (field, *field.get("anyOf", ()))
        if each.get("type") == "integer" and "maximum" not in each
    }

    assert unbounded == set()


async def test_lists_are_paged_by_parameters_of_their_query(client: AsyncClient) -> None:
    """The document names them, as it does filters."""
    document = (await client.get("/openapi.json")).json()
    queries = {
        path: {each["name"] for each in get.get("parameters", ()) if each["in"] == "query"}
        for path, operations in document["paths"].items()
        if (get := operations.get("get")) and "List" in str(get["responses"]["200"])
    }

    assert queries["/v1/files"] == {"limit", "order", "after", "purpose"}
    assert queries["/v1/conversations/{conversation_id}/items"] >= {"limit", "after", "include"}
    whole = {"/api/tags", "/v1/responses/mcp_servers"}  # which are those of the settings
    assert {path for path, names in queries.items() if "limit" not in names} == whole


async def test_the_parameters_of_an_operation_differ_as_python_names(client: AsyncClient) -> None:
    """openapi-python-client generates no function for others."""
    document = (await client.get("/openapi.json")).json()
    names = {
        (path, method): [re.sub(r"\W", "", each["name"]) for each in operation["parameters"]]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "parameters" in operation
    }

    assert names
    assert [where for where, each in names.items() if len(each) > len(set(each))] == []
