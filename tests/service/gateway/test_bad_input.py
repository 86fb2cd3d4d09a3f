"""Invalid requests get OpenAI's error envelope and do not reach the service."""

import json
from typing import Any

import pytest
from httpx import AsyncClient

from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_and_connect, run_gateway
from tests.support.raw_http import RawConnection, open_connection

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER: dict[str, Any] = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "fake", "messages": [USER]}
JSON = {"content-type": "application/json"}
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)
UNPARSED = "We could not parse the JSON body of your request."


def assert_envelope(body: Any, *, code: str | None, param: str | None = None) -> None:
    """Check the keys, the code and the param of an error."""
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)


BAD_FIELDS: list[tuple[str, Any, str, str]] = [
    (CHAT, {}, "missing_required_parameter", "model"),
    (CHAT, {"model": "fake"}, "missing_required_parameter", "messages"),
    (CHAT, BODY | {"messages": []}, "empty_array", "messages"),
    (CHAT, BODY | {"messages": [USER | {"content": 5}]}, "invalid_type", "messages[0].content"),
    (CHAT, BODY | {"temperature": 101}, "integer_above_max_value", "temperature"),
    (CHAT, BODY | {"stop": ["x"] * 17}, "array_above_max_length", "stop"),
    (CHAT, BODY | {"functions": [{}]}, "missing_required_parameter", "functions[0].name"),
    (CHAT, BODY | {"nonsense": 1, "stream": True}, "unknown_parameter", "nonsense"),
    (TEXT, {"model": "fake"}, "missing_required_parameter", "prompt"),
    (TEXT, {"model": "fake", "prompt": [1, "a"]}, "invalid_type", "prompt[1]"),
]


async def test_an_invalid_field_is_rejected(
    fake: FakeInference, client: AsyncClient, subtests: pytest.Subtests
) -> None:
    """The error has the path of the field and OpenAI's code."""
    for path, body, code, param in BAD_FIELDS:
        with subtests.test(body=body):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert_envelope(answer.json(), code=code, param=param)
            assert answer.json()["error"]["type"] == "invalid_request_error"

    assert fake.calls.requests == []


NO_JSON_OBJECTS = [
    b"{",
    b"[]",
    b"null",
    b'{"model": NaN}',
    b'{"temperature": Infinity}',
    b'{"a": "\\ud800"}',
    b"\xff\xfe",
    b'{"a":' * 500 + b"1" + b"}" * 500,
    b"[" * 100_000,
]


async def test_invalid_json_is_rejected(client: AsyncClient, subtests: pytest.Subtests) -> None:
    """With OpenAI's message and without a field."""
    for raw in NO_JSON_OBJECTS:
        with subtests.test(raw=raw[:20]):
            answer = await client.post(CHAT, content=raw, headers=JSON)
            assert answer.status_code == 400
            assert_envelope(answer.json(), code=None)
            assert answer.json()["error"]["message"].startswith(UNPARSED)


async def test_only_json_is_accepted(client: AsyncClient) -> None:
    """Other types get 415, since browsers send them to any site."""
    text = await client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    none = await client.post(CHAT, content=b"{}")
    json = await client.post(
        CHAT, content=b"{}", headers={"content-type": "application/json; charset=utf-8"}
    )

    assert (text.status_code, none.status_code, json.status_code) == (415, 415, 400)
    assert_envelope(text.json(), code="unsupported_media_type")


FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", b'{"model": "fake", "messages": []}'),
        ("/api/show", b'{"model": "fake"}'),
        ("/completion", b'{"prompt": "Hi", "n_predict": 1}'),
    ],
)
async def test_curl_needs_no_type_where_the_servers_of_the_api_read_none(
    client: AsyncClient, path: str, body: bytes
) -> None:
    """A browser does, whichever page its form or script is on."""
    for headers in (FORM, {}, {"content-type": "text/plain"}):
        assert (await client.post(path, content=body, headers=headers)).status_code == 200
        for name, value in (
            ("origin", "http://localhost:3000"),
            ("referer", "http://elsewhere.example/"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
        ):
            answer = await client.post(path, content=body, headers={**headers, name: value})
            assert answer.status_code == 415
    origin = {"origin": "http://elsewhere.example"}
    assert (await client.post(path, content=body, headers=JSON | origin)).status_code == 403


async def test_compressed_bodies_are_rejected(client: AsyncClient) -> None:
    """They could expand to a large body."""
    headers = JSON | {"content-encoding": "gzip"}
    answer = await client.post(CHAT, content=b"{}", headers=headers)

    assert answer.status_code == 415
    assert answer.json()["error"]["message"] == (
        "The content encoding 'gzip' is not supported. Send the body without one."
    )


async def test_a_large_content_length_is_rejected() -> None:
    """With 413, before the body is read."""
    async with run_and_connect(body_limit_bytes=2048) as connection:
        await connection.send(HEAD + b"content-length: 4096\r\n\r\n")
        status, headers = await connection.head()

    assert status == 413
    assert headers["connection"] == "close"


async def test_a_large_chunked_body_is_rejected() -> None:
    """With 413, while it is read."""
    async with run_and_connect(body_limit_bytes=64 * 1024) as connection:
        await connection.send(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(65):
            await connection.send(b"400\r\n" + b" " * 1024 + b"\r\n")
        status, headers = await connection.head()
        body = await connection.body(headers)

    assert status == 413
    assert b"request_too_large" in body


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (b"/v1/chat/completions", {"error"}),
        (b"/v1/messages", {"type", "error", "request_id"}),
        (b"/api/chat", {"error"}),
        (b"/completion", {"error"}),
        (b"/v1/audio/transcriptions", {"error"}),
    ],
)
async def test_a_body_has_a_timeout(path: bytes, names: set[str]) -> None:
    """The client gets 408 in the form of its API, and the connection ends."""
    head = HEAD.replace(b"/v1/chat/completions", path)
    if b"audio" in path:
        head = head.replace(b"application/json", b"multipart/form-data; boundary=x")
    async with run_and_connect(receive_timeout_s=0.05, min_body_rate=0) as connection:
        await connection.send(head + b"content-length: 10\r\n\r\n-")
        status, headers = await connection.head()
        body = json.loads(await connection.body(headers))

    assert (status, headers["connection"], body.keys()) == (408, "close", names)
    error = body["error"]
    message = error if path == b"/api/chat" else error["message"]
    assert message.startswith("The body of the request did not arrive in time: ")
    assert "0.05 s" in message
    if path == b"/completion":
        assert error["code"] == 408


WRONG_URLS = [
    ("GET", "/nothing", 404, "route_not_found"),
    ("POST", "/v1/nothing", 404, "route_not_found"),
    ("GET", "/v1/models/", 404, "model_not_found"),
    ("POST", "/v1/chat/completions/", 404, "route_not_found"),
    ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
    ("DELETE", "/v1/models/fake", 405, "method_not_allowed"),
    ("GET", "/v1/models/nope", 404, "model_not_found"),
]


async def test_unknown_urls_are_rejected(client: AsyncClient, subtests: pytest.Subtests) -> None:
    """404 and 405."""
    for method, path, status, code in WRONG_URLS:
        with subtests.test(method=method, path=path):
            answer = await client.request(method, path)
            assert answer.status_code == status
            assert_envelope(answer.json(), code=code)
            assert answer.headers["x-request-id"].startswith("req_")


async def test_405_has_an_allow_header(client: AsyncClient) -> None:
    answer = await client.delete("/v1/models/fake")

    assert answer.headers["allow"] == "GET"


async def test_unknown_query_parameters_are_ignored(client: AsyncClient) -> None:
    """Newer clients may send more."""
    answer = await client.get("/v1/models?beta=true")

    assert answer.status_code == 200


@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02"]
)
async def test_invalid_http_gets_the_error_envelope(connection: RawConnection, raw: bytes) -> None:
    """Including a TLS handshake."""
    await connection.send(raw)
    answer = await connection.rest()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"error":{"message":' in answer


async def test_a_head_has_a_timeout() -> None:
    """The connection is closed."""
    async with (
        run_gateway(receive_timeout_s=0.05) as gateway,
        open_connection(gateway.address) as silent,
        open_connection(gateway.address) as slow,
    ):
        await slow.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /hea")
        _, headers = await slow.head()
        await slow.body(headers)
        tails = await silent.rest(), await slow.rest()

    assert tails == (b"", b"")


async def test_a_large_head_is_rejected(connection: RawConnection) -> None:
    await connection.send(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 70_000)
    answer = await connection.rest()

    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_concurrent_requests_are_limited() -> None:
    """Further requests get 429, except probes."""
    async with (
        run_gateway(max_requests=1) as gateway,
        gateway.client() as client,
        open_connection(gateway.address) as slow,
    ):
        await slow.send(HEAD + b"content-length: 10\r\nexpect: 100-continue\r\n\r\n")
        await slow.head()  # "continue": the request runs
        refused, probe = await client.get("/v1/models"), await client.get("/health")

    assert refused.status_code == 429
    assert_envelope(refused.json(), code="queue_full")
    assert refused.headers["retry-after"] == "1"
    assert probe.status_code == 200
