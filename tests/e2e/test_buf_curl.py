"""`buf curl` with server reflection."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import PATIENCE_S
from tests.support.rpc import CAPITAL, PARIS
from tests.support.services import Corral

pytestmark = pytest.mark.e2e

BUF = Path(sys.executable).with_name("buf")
PROTOS = Path(__file__).resolve().parents[2] / "protos"
INFERENCE = "corral.inference.v1.InferenceService"
ENGINE = "corral.inference.v1.EngineService"
FILES = "corral.control.v1.FileService"


def buf_curl(
    up: Corral, path: str, *arguments: str, target: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run `buf curl` against the shared server, by default its inference service."""
    command = [str(BUF), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments]
    return subprocess.run(
        [*command, f"http://{target or up.target}/{path}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def messages(text: str) -> list[dict[str, Any]]:
    decoder, objects, position = json.JSONDecoder(), [], 0
    while position < len(text.rstrip()):
        message, position = decoder.raw_decode(text, position)
        position += len(text[position:]) - len(text[position:].lstrip())
        objects.append(message)
    return objects


@pytest.mark.parametrize("version", ["grpc-v1", "grpc-v1alpha"])
def test_reflection_lists_the_services(up: Corral, version: str) -> None:
    """With both versions of reflection, including the health service."""
    listed = buf_curl(up, "", "--reflect-protocol", version, "--list-services")

    assert {INFERENCE, ENGINE, "grpc.health.v1.Health"} <= set(listed.stdout.split()), listed.stderr


def test_reflection_lists_the_methods(up: Corral) -> None:
    """Exactly those that the protos declare."""
    listed = buf_curl(up, "", "--list-methods").stdout.split()
    listed += buf_curl(up, "", "--list-methods", target=up.control).stdout.split()
    declared = buf_curl(up, "", "--schema", str(PROTOS), "--list-methods").stdout.split()

    assert {f"{INFERENCE}/Chat", f"{FILES}/CreateFile"} <= set(declared)
    assert set(declared) <= set(listed)


def test_a_file_is_uploaded_and_downloaded_with_reflection(up: Corral) -> None:
    """Client streaming and server streaming."""
    header = {"header": {"filename": "a.txt", "purpose": "FILE_PURPOSE_USER_DATA"}}
    pieces = json.dumps(header) + json.dumps({"chunk": base64.b64encode(b"hello").decode()})
    created = buf_curl(up, f"{FILES}/CreateFile", "--data", pieces, target=up.control)
    file = json.loads(created.stdout)["file"]
    request = json.dumps({"file_id": file["id"], "offset": 1})
    read = buf_curl(up, f"{FILES}/DownloadFile", "--data", request, target=up.control)
    first, second = messages(read.stdout)

    assert (file["filename"], file["sizeBytes"]) == ("a.txt", "5")
    assert first["file"] == file
    assert base64.b64decode(second["chunk"]) == b"ello"


def test_a_stream_is_called_with_reflection(up: Corral) -> None:
    """Request and responses are JSON."""
    body = {
        "conversation": {"messages": [{"role": "ROLE_USER", "parts": [{"text": CAPITAL}]}]},
        "options": {"sampling": {"temperature": 0}},
    }
    called = buf_curl(up, f"{INFERENCE}/Chat", "--data", json.dumps(body))
    events = messages(called.stdout)

    assert called.returncode == 0, called.stderr
    assert "accepted" in events[0]
    assert "".join(event.get("delta", {}).get("content", "") for event in events) == PARIS
    assert events[-1]["done"]["usage"]["completionTokens"] > 0


@pytest.mark.parametrize(
    ("method", "field"),
    [
        (f"{INFERENCE}/ListModels", "models"),
        (f"{ENGINE}/GetServerInfo", "version"),
        (f"{ENGINE}/GetLoad", "load"),
        ("grpc.health.v1.Health/Check", "status"),
    ],
)
def test_unary_methods_are_called_with_reflection(up: Corral, method: str, field: str) -> None:
    """Of Corral's services and standard ones."""
    called = buf_curl(up, method, "--data", "{}")

    assert called.returncode == 0, called.stderr
    assert field in json.loads(called.stdout)


def test_the_server_can_be_called_with_the_schema_of_the_repository(up: Corral) -> None:
    """Without reflection."""
    called = buf_curl(
        up, f"{INFERENCE}/CountTokens", "--schema", str(PROTOS), "--data", '{"text": "Hello"}'
    )

    assert called.returncode == 0, called.stderr
    assert json.loads(called.stdout)["promptTokens"] > 0


def test_an_error_shows_its_details(up: Corral) -> None:
    """Status, message and typed details."""
    called = buf_curl(up, f"{INFERENCE}/GetModel", "--data", '{"model": "gpt-9"}')
    error = json.loads(called.stderr)

    assert called.returncode != 0
    assert error["code"] == "not_found"
    assert "gpt-9" in error["message"]
    assert "google.rpc.ErrorInfo" in {detail["type"] for detail in error["details"]}
