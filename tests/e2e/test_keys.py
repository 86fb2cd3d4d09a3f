"""Keys of the control service in a running Corral: creation, use, usage and revocation."""

import asyncio
import re
from collections.abc import Iterator
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
from tests.support.rpc import CAPITAL, PARIS, Rpc, gather, make_chat, read_error
from tests.support.services import MODEL, Corral, corral_up, start

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Keyed:
    """A Corral that requires keys and has none in its settings."""

    corral: Corral
    folder: Path

    @property
    def token_file(self) -> Path:
        """The service token."""
        return self.folder / "data" / "service-token"

    def run_command(self, *arguments: str) -> str:
        """Run `corral` with the service token; return its output."""
        flags = ("--target", self.corral.control, "--service-token-file", str(self.token_file))
        with start(self.folder, *arguments, *flags) as program:
            assert program.wait() == 0
            return "\n".join(line.text for line in program.stdout)

    def create_key(self, project: str) -> tuple[str, str]:
        """Create a key; return it and its id."""
        output = self.run_command("keys", "create", "--project", project)
        match = re.search(r"key \(shown once\): (\S+)\s+(key_\w+)", output)
        assert match
        return match[1], match[2]

    async def chat(self, key: str) -> ChatCompletion:
        """Send a chat over HTTP."""
        async with self.corral.sdk(key) as client:
            return await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": CAPITAL}], temperature=0
            )


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """Run `corral up --require-keys` without a cache of verdicts."""
    folder = tmp_path_factory.mktemp("keyed")
    inference = {"key_cache_s": 0, "usage_interval_s": 0.1}
    with corral_up(
        folder, "--require-keys", inference=inference, gateway={"key_cache_s": 0}
    ) as corral:
        yield Keyed(corral, folder)


@pytest.fixture(scope="module")
def server(keyed: Keyed) -> Corral:
    """The server with keys."""
    return keyed.corral


async def test_a_key_works_everywhere_until_it_is_revoked(keyed: Keyed, rpc: Rpc) -> None:
    """Created and revoked by the command without a restart."""
    await asyncio.to_thread(keyed.run_command, "projects", "create", "red")
    key, key_id = await asyncio.to_thread(keyed.create_key, "red")
    bearer = (("authorization", f"Bearer {key}"),)
    over_grpc = await gather(rpc.inference.Chat(make_chat(), metadata=bearer))

    assert (await keyed.chat(key)).choices[0].message.content == PARIS
    assert over_grpc.text[0] == PARIS
    async with open_channel(keyed.corral.control, token=key) as control:
        files = FileServiceStub(control)
        await files.ListFiles(file_service_pb2.ListFilesRequest())
        await asyncio.to_thread(keyed.run_command, "keys", "revoke", key_id)
        with pytest.raises(ApiKeyRevoked), translate_errors():
            await files.ListFiles(file_service_pb2.ListFilesRequest())
    refused = await read_error(rpc.inference.Chat(make_chat(), metadata=bearer))
    assert refused.reason == "API_KEY_REVOKED"
    with pytest.raises(openai.AuthenticationError) as failure:
        await keyed.chat(key)
    assert failure.value.code == "api_key_revoked"


async def test_requests_without_a_valid_key_are_refused(keyed: Keyed, rpc: Rpc) -> None:
    """Also on loopback."""
    with pytest.raises(openai.AuthenticationError):
        await keyed.chat("none")
    assert (await read_error(rpc.inference.Chat(make_chat()))).reason == "API_KEY_MISSING"


async def test_usage_is_reported_by_project_and_model(keyed: Keyed) -> None:
    """With the counts of the responses."""
    await asyncio.to_thread(keyed.run_command, "projects", "create", "blue")
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
    shown = await asyncio.to_thread(keyed.run_command, "usage", "--project", "blue")

    usages = [answer.usage for answer in answers if answer.usage is not None]
    for name in ("prompt_tokens", "completion_tokens"):
        counted = sum(getattr(each.counts, name) for each in sums)
        assert counted == sum(getattr(usage, name) for usage in usages) > 0
    assert shown.splitlines()[1].split()[2:5] == ["blue", MODEL, "2"]
