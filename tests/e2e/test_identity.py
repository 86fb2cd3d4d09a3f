"""API keys, scopes and projects through the gateway and over gRPC."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import session_pb2

from svc_kit.auth.keys import create_key, hash_key
from tests.support.processes import Program
from tests.support.rpc import (
    CAPITAL,
    PARIS,
    RichError,
    Rpc,
    call_error,
    endless_chat,
    gather,
    make_chat,
    read_delta,
    read_error,
)
from tests.support.services import MODEL, Corral, corral_up, start

pytestmark = pytest.mark.e2e

EXPIRED = "2020-01-01T00:00:00Z"
METADATA = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Guarded:
    """A Corral that requires keys, and the keys."""

    corral: Corral
    red: str
    """Scope inference, project red."""
    blue: str
    """Scope inference, project blue, created by `corral keys create`."""
    operator: str
    """Scopes inference and admin, project operators."""
    watcher: str
    """Scope admin only."""
    expired: str
    service_token: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    blue, blue_lines = create_key_offline(folder)
    keys = {name: create_key() for name in ("red", "operator", "watcher", "expired")}
    lines = [
        *blue_lines,
        *entries("red", keys["red"], project="red"),
        *entries("operator", keys["operator"], project="operators", scopes=["inference", "admin"]),
        *entries("watcher", keys["watcher"], project="operators", scopes=["admin"]),
        *entries("expired", keys["expired"], project="red", expires_at=EXPIRED),
    ]
    config = folder / "corral.toml"
    config.write_text("\n".join(lines))
    with corral_up(folder, "--config", config) as corral:
        token = (folder / "data" / "service-token").read_text().strip()
        yield Guarded(corral, blue=blue, service_token=token, **keys)


def create_key_offline(folder: Path) -> tuple[str, list[str]]:
    """Create a key with `corral keys create --offline`; return it and the printed settings."""
    flags = ("--offline", "--name", "blue", "--project", "blue")
    with start(folder, "keys", "create", *flags) as program:
        assert program.wait() == 0
        lines = [line.text for line in program.stdout]
    key = lines[0].rpartition(" ")[2]
    begin = next(number for number, line in enumerate(lines) if line.startswith("[["))
    end = next(number for number, line in enumerate(lines) if line.startswith("Callers"))
    return key, lines[begin:end]


def entries(
    name: str,
    key: str,
    *,
    project: str,
    scopes: list[str] | None = None,
    expires_at: str | None = None,
) -> list[str]:
    """Return the TOML tables of one key for both services."""
    lines = [f'name = "{name}"', f'sha256 = "{hash_key(key)}"', f'project = "{project}"']
    lines.append(f"scopes = {scopes or ['inference']}")
    if expires_at:
        lines.append(f"expires_at = {expires_at}")
    return [
        line for service in ("gateway", "inference") for line in (f"[[{service}.keys]]", *lines)
    ]


@pytest.fixture(scope="module")
def server(guarded: Guarded) -> Corral:
    return guarded.corral


def bearer(key: str) -> METADATA:
    return (("authorization", f"Bearer {key}"),)


async def refusal(rpc: Rpc, metadata: METADATA = ()) -> RichError:
    return await read_error(rpc.inference.Chat(make_chat(), metadata=metadata))


# --- keys -----------------------------------------------------------------------------------------


async def test_grpc_requires_a_valid_key(guarded: Guarded, rpc: Rpc) -> None:
    """UNAUTHENTICATED with the reason: missing, unknown, expired, or another scheme."""
    errors = {
        "API_KEY_MISSING": await refusal(rpc),
        "API_KEY_INVALID": await refusal(rpc, bearer("sk-wrong")),
        "API_KEY_EXPIRED": await refusal(rpc, bearer(guarded.expired)),
    }
    basic = await refusal(rpc, (("authorization", f"Basic {guarded.red}"),))
    answer = await gather(rpc.inference.Chat(make_chat(), metadata=bearer(guarded.red)))

    for reason, error in errors.items():
        assert (error.code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, reason)
    assert basic.reason == "API_KEY_INVALID"
    assert answer.text[0] == PARIS


async def test_a_key_created_offline_is_accepted(guarded: Guarded) -> None:
    """With the settings that the command prints."""
    async with guarded.corral.sdk(guarded.blue) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": CAPITAL}], temperature=0
        )

    assert answer.choices[0].message.content == PARIS


# --- scopes ---------------------------------------------------------------------------------------


async def test_an_admin_key_cannot_run_inference(guarded: Guarded, rpc: Rpc) -> None:
    """Scopes are independent, also in the gateway. It sees what `corral top` and the page show."""
    watcher = bearer(guarded.watcher)
    info = await rpc.engine.GetServerInfo(engine_pb.GetServerInfoRequest(), metadata=watcher)
    listed = await rpc.inference.ListModels(pb.ListModelsRequest(), metadata=watcher)
    await rpc.engine.ListRequests(engine_pb.ListRequestsRequest(), metadata=watcher)
    error = await refusal(rpc, bearer(guarded.watcher))
    async with guarded.corral.sdk(guarded.watcher) as client:
        assert len((await client.models.list()).data) == len(listed.models)
        with pytest.raises(openai.PermissionDeniedError) as failure:
            await client.completions.create(model=MODEL, prompt="a", max_tokens=1)

    assert info.engine_state == engine_pb.ENGINE_STATE_SERVING
    assert len(listed.models) > 0
    assert (error.reason, error.metadata["scope"]) == ("SCOPE_MISSING", "generate")
    assert failure.value.code == "scope_missing"


# --- projects -------------------------------------------------------------------------------------


async def test_another_projects_requests_cannot_be_seen_or_aborted(
    guarded: Guarded, rpc: Rpc
) -> None:
    """They are not found, except for the owner and operators."""
    stream = rpc.inference.Chat(endless_chat(), metadata=bearer(guarded.red))
    request_id = await read_delta(stream)
    abort = engine_pb.AbortRequest(request_ids=[request_id])
    seen = {
        key: await list_requests(rpc, getattr(guarded, key)) for key in ("red", "blue", "operator")
    }
    by_blue = await rpc.engine.Abort(abort, metadata=bearer(guarded.blue))
    remaining = await list_requests(rpc, guarded.red)
    by_red = await rpc.engine.Abort(abort, metadata=bearer(guarded.red))
    ended = await read_error(stream)

    assert seen == {"red": {request_id: "red"}, "blue": {}, "operator": {request_id: "red"}}
    assert by_blue.outcomes[0].kind == engine_pb.AbortOutcome.KIND_NOT_RUNNING
    assert remaining == {request_id: "red"}
    assert by_red.outcomes[0].kind == engine_pb.AbortOutcome.KIND_ABORTED
    assert ended.reason == "ABORTED_BY_OPERATOR"


async def test_another_projects_sessions_cannot_be_seen(guarded: Guarded, rpc: Rpc) -> None:
    """Not even by their ids; the owner and operators see them, also through the gateway."""
    request = endless_chat()
    request.options.stopping.max_tokens = 1
    request.options.cache.affinity = "secret agent"
    async for _ in rpc.inference.Chat(request, metadata=bearer(guarded.red)):
        pass
    (found,) = await list_sessions(rpc, guarded.red)
    (whole,) = await list_sessions(rpc, guarded.red, found.session_id)
    by_operator = await list_sessions(rpc, guarded.operator, found.session_id)
    async with httpx.AsyncClient(base_url=guarded.corral.url, trust_env=False) as client:
        shown = {}
        for name in ("red", "blue", "operator"):
            headers = {"authorization": f"Bearer {getattr(guarded, name)}"}
            answer = await client.get("/admin/sessions", headers=headers)
            shown[name] = answer.text.count("secret agent")

    assert (found.project, found.num_turns, len(whole.turns)) == ("red", 1, 1)
    assert whole.turns[0].usage.completion_tokens == 1
    assert by_operator == [whole]
    assert await list_sessions(rpc, guarded.blue) == []
    assert await list_sessions(rpc, guarded.blue, found.session_id) == []
    assert shown == {"red": 1, "blue": 0, "operator": 1}


async def list_sessions(rpc: Rpc, key: str, session_id: str = "") -> list[session_pb2.Session]:
    """The sessions of the test that a key can list."""
    request = engine_pb.ListSessionsRequest(session_id=session_id)
    answer = await rpc.engine.ListSessions(request, metadata=bearer(key))
    return [each for each in answer.sessions if each.name == "secret agent"]


async def list_requests(rpc: Rpc, key: str) -> dict[str, str]:
    """Return the projects of the live requests that a key can list, by id."""
    answer = await rpc.engine.ListRequests(engine_pb.ListRequestsRequest(), metadata=bearer(key))
    return {live.request_id: live.project for live in answer.requests}


async def test_the_gateway_calls_in_the_project_of_its_caller(guarded: Guarded, rpc: Rpc) -> None:
    """With the service token, and the caller's project and label in metadata."""
    async with guarded.corral.sdk(guarded.red) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Tell me a story."}],
            stream=True,
            extra_body={"ignore_eos": True},
            extra_headers={"x-request-id": "mine-4"},
        )
        await anext(aiter(stream))
        mine = await rpc.engine.ListRequests(
            engine_pb.ListRequestsRequest(), metadata=bearer(guarded.red)
        )
        hidden = await list_requests(rpc, guarded.blue)
        await stream.close()

    assert [(live.project, live.label) for live in mine.requests] == [("red", "mine-4")]
    assert hidden == {}
    async with asyncio.timeout(50):
        while await list_requests(rpc, guarded.red):
            pass


async def test_a_caller_cannot_choose_its_project(guarded: Guarded, rpc: Rpc) -> None:
    """The project in metadata is ignored without the service token."""
    claim = (("x-corral-project", "blue"), ("x-corral-scopes", "admin,inference"))
    stream = rpc.inference.Chat(endless_chat(), metadata=(*bearer(guarded.red), *claim))
    request_id = await read_delta(stream)
    seen = await list_requests(rpc, guarded.red)
    error = await call_error(
        rpc.engine.GetLoad(engine_pb.GetLoadRequest(), metadata=(*bearer(guarded.red), *claim))
    )
    stream.cancel()
    by_service = await rpc.inference.ListModels(
        pb.ListModelsRequest(), metadata=(*bearer(guarded.service_token), *claim)
    )

    assert seen == {request_id: "red"}
    assert error.reason == "SCOPE_MISSING"
    assert by_service.models[0].name == MODEL


async def test_projects_do_not_share_prefixes(guarded: Guarded, rpc: Rpc) -> None:
    """The count of cached tokens would reveal prompts of other projects."""
    request = make_chat(stopping={"max_tokens": 1})
    request.conversation.messages[0].parts[0].text = "A secret of the red project. " * 5

    async def cached(key: str) -> int:
        answer = await gather(rpc.inference.Chat(request, metadata=bearer(key)))
        return answer.done.usage.cached_tokens

    first, again, other = [await cached(key) for key in (guarded.red, guarded.red, guarded.blue)]

    assert (first, other) == (0, 0)
    assert again > 0


# --- secrets --------------------------------------------------------------------------------------


async def test_no_secret_is_ever_logged(guarded: Guarded, rpc: Rpc) -> None:
    """Neither keys nor tokens nor prompts, for successful and failed requests."""
    prompt = "Xyzzy is the word of the day."
    request = make_chat()
    request.conversation.messages[0].parts[0].text = prompt
    await gather(rpc.inference.Chat(request, metadata=bearer(guarded.red)))
    await refusal(rpc, bearer("sk-nobody-knows"))
    async with httpx.AsyncClient(base_url=guarded.corral.url, trust_env=False) as plain:
        await plain.post(
            "/v1/completions",
            json={"model": MODEL, "prompt": prompt, "no_such_field": prompt},
            headers={"authorization": f"Bearer {guarded.blue}"},
        )
    await guarded.corral.program.line("^request$", status="400")
    output = "\n".join(
        line.text for line in (*guarded.corral.program.stderr, *guarded.corral.program.stdout)
    )

    for secret in (
        prompt,
        "sk-nobody-knows",
        guarded.red,
        guarded.blue,
        guarded.service_token,
        hash_key(guarded.red),
    ):
        assert secret not in output


def test_the_service_token_is_readable_by_its_owner_only(guarded: Guarded, tmp_path: Path) -> None:
    """A service refuses to start with another mode."""
    (token,) = [
        path
        for path in Path(guarded.corral.program.directory / "data").iterdir()
        if path.name == "service-token"
    ]
    open_to_all = tmp_path / "token"
    open_to_all.write_text("secret")
    open_to_all.chmod(0o644)
    settings = {"service_token_file": str(open_to_all), "listen": "127.0.0.1:0"}
    with start(tmp_path, "serve", "inference", inference=settings) as program:
        lines = startup_error(program)

    assert token.stat().st_mode & 0o777 == 0o600
    assert len(lines) == 2
    assert "service_token_file" in lines[1]
    assert "chmod 600" in lines[1]


def startup_error(program: Program) -> list[str]:
    """Return the lines that a failed service prints besides its log."""
    assert program.wait() == 1
    lines = [line.text for line in program.stderr if not line.fields]
    assert not any("Traceback" in line for line in lines)
    return lines
