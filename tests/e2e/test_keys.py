"""Keys of the control service in a running Corral: made, used, counted and revoked."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from corral.control.v1 import file_service_pb2, usage_service_pb2
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.usage_service_pb2_grpc import UsageServiceStub
from openai.types.chat import ChatCompletion

from svc_kit.errors import ApiKeyRevoked
from svc_kit.rpc.client import open_channel, translate_errors
from tests.support.rpc import CAPITAL, PARIS, Rpc, a_chat, connect, failure_of, gather
from tests.support.services import MODEL, Corral, corral_up, start

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Keyed:
    """A Corral that wants keys, none of which are in its settings."""

    corral: Corral
    folder: Path

    @property
    def token_file(self) -> Path:
        """The credential of its owner."""
        return self.folder / "data" / "service-token"

    def command(self, *arguments: str) -> str:
        """What an operator's command prints; it must not fail."""
        where = ("--target", self.corral.control, "--service-token-file", str(self.token_file))
        with start(self.folder, *arguments, *where) as program:
            assert program.wait() == 0
            return "\n".join(line.text for line in program.stdout)

    def create_key(self, project: str) -> tuple[str, str]:
        """A key, and its id."""
        made = self.command("keys", "create", "--project", project)
        found = re.search(r"key \(shown once\): (\S+)\s+(key_\w+)", made)
        assert found
        return found[1], found[2]

    async def chat(self, key: str) -> ChatCompletion:
        """One answer over HTTP."""
        async with openai.AsyncOpenAI(
            base_url=self.corral.api, api_key=key, max_retries=0
        ) as client:
            return await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": CAPITAL}], temperature=0
            )


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """`corral up --require-keys`; nothing that control says is kept."""
    folder = tmp_path_factory.mktemp("keyed")
    inference = {"key_cache_s": 0, "usage_interval_s": 0.1}
    with corral_up(
        folder, "--require-keys", inference=inference, gateway={"key_cache_s": 0}
    ) as corral:
        yield Keyed(corral, folder)


@pytest.fixture
async def rpc(keyed: Keyed) -> AsyncIterator[Rpc]:
    """A bare gRPC client of the inference service."""
    async with connect(keyed.corral.target) as connected:
        yield connected


async def test_a_key_works_everywhere_until_it_is_revoked(keyed: Keyed, rpc: Rpc) -> None:
    """Made and revoked by the command, while everything runs."""
    await asyncio.to_thread(keyed.command, "projects", "create", "red")
    key, key_id = await asyncio.to_thread(keyed.create_key, "red")
    bearer = (("authorization", f"Bearer {key}"),)
    over_grpc = await gather(rpc.inference.Chat(a_chat(), metadata=bearer))

    assert (await keyed.chat(key)).choices[0].message.content == PARIS
    assert over_grpc.text[0] == PARIS
    async with open_channel(keyed.corral.control, token=key) as control:
        files = FileServiceStub(control)
        await files.ListFiles(file_service_pb2.ListFilesRequest())
        await asyncio.to_thread(keyed.command, "keys", "revoke", key_id)
        with pytest.raises(ApiKeyRevoked), translate_errors():
            await files.ListFiles(file_service_pb2.ListFilesRequest())
    refused = await failure_of(rpc.inference.Chat(a_chat(), metadata=bearer))
    assert refused.reason == "API_KEY_REVOKED"
    with pytest.raises(openai.AuthenticationError) as failure:
        await keyed.chat(key)
    assert failure.value.code == "api_key_revoked"


async def test_without_a_key_nobody_is_served(keyed: Keyed, rpc: Rpc) -> None:
    """On loopback neither; any text for a key is no key."""
    with pytest.raises(openai.AuthenticationError):
        await keyed.chat("none")
    assert (await failure_of(rpc.inference.Chat(a_chat()))).reason == "API_KEY_MISSING"


async def test_what_was_used_is_told_by_project_and_model(keyed: Keyed) -> None:
    """As the answers themselves say it."""
    await asyncio.to_thread(keyed.command, "projects", "create", "blue")
    key, _ = await asyncio.to_thread(keyed.create_key, "blue")
    answers = [await keyed.chat(key) for _ in range(2)]
    token = keyed.token_file.read_text().strip()
    sums: list[usage_service_pb2.UsageSum] = []
    async with open_channel(keyed.corral.control, token=token) as control:
        usage = UsageServiceStub(control)
        async with asyncio.timeout(20):
            while sum(each.counts.requests for each in sums) < len(answers):
                request = usage_service_pb2.ListUsageRequest(project="blue", model=MODEL)
                sums = list((await usage.ListUsage(request)).sums)
    shown = await asyncio.to_thread(keyed.command, "usage", "--project", "blue")

    told = [answer.usage for answer in answers if answer.usage is not None]
    for name in ("prompt_tokens", "completion_tokens"):
        counted = sum(getattr(each.counts, name) for each in sums)
        assert counted == sum(getattr(usage, name) for usage in told) > 0
    assert shown.splitlines()[1].split()[2:5] == ["blue", MODEL, "2"]
