"""The disk prefix cache for stateless clients: a chat that sends everything again computes only
what is new, also after a crash, an unload and a restart."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import project_service_pb2
from corral.control.v1.project_service_pb2_grpc import ProjectServiceStub
from openai import AsyncOpenAI

from svc_kit.auth.authenticator import ServiceToken
from tests.support.archives import Caller, archived_tokens
from tests.support.rpc import connect, gather, make_chat, user
from tests.support.services import MODEL, Corral, corral_up, wait_until_serving
from tests.support.small_disk import fill, mount_disk
from tests.support.upgrade_client import wait_until

pytestmark = pytest.mark.e2e


def rooms(first: int, count: int) -> str:
    """A text of about 11 tokens a room."""
    return " ".join(f"Room {i} has {i + 2} red chairs." for i in range(first, first + count))


LONG_TEXT = rooms(0, 150)
ROOM = {"engine.saved_prefix_mib": 64}
DROP = "/corral.inference.v1.EngineService/DropSnapshots"


@dataclass
class Chat:
    """A conversation that only the client keeps."""

    client: AsyncOpenAI
    messages: list[Any] = field(default_factory=list)
    num_tokens: int = 0
    """Tokens of the last turn: what does not change in the next one."""

    async def reused(self, text: str) -> float:
        """Send the next turn; returns how much of what had not changed was reused."""
        self.messages.append({"role": "user", "content": text})
        completion = await self.client.chat.completions.create(
            model=MODEL, messages=self.messages, max_tokens=16, temperature=0
        )
        self.messages.append(completion.choices[0].message.model_dump(include={"role", "content"}))
        usage: Any = completion.usage
        share = usage.prompt_tokens_details.cached_tokens / max(self.num_tokens, 1)
        self.num_tokens = usage.prompt_tokens
        return float(share)


@asynccontextmanager
async def run(folder: Path, **inference: object) -> AsyncIterator[tuple[Corral, Caller]]:
    """Run Corral, until the digest of its model is known."""
    with corral_up(folder, inference={**ROOM, **inference}) as corral:
        async with connect(corral.target) as rpc:
            caller = Caller(rpc, ServiceToken.read(folder / "data" / "service-token").secret)
            await caller.wait_for_model_digest()
            yield corral, caller


async def test_a_stateless_chat_stays_warm(tmp_path: Path) -> None:
    """After a kill of the service and its engine, an unload, and a restart, each at the end of a
    turn that added more than 256 tokens. Another project that sends the same reuses nothing."""
    async with run(tmp_path) as (corral, caller), corral.sdk() as client:
        chat = Chat(client)
        cold = await chat.reused(LONG_TEXT)
        wait_until(
            lambda: max(archived_tokens(tmp_path), default=0) >= chat.num_tokens,
            "the chat is not written in the background",
        )
        mark = corral.program.bookmark()
        os.kill(corral.program.member("serve inference").pid, signal.SIGKILL)
        await corral.program.line("serving gRPC", after=mark)
        wait_until_serving(corral.target)
        await caller.wait_for_model_digest()
        request = make_chat(user(LONG_TEXT), stopping={"max_tokens": 4})
        call = caller.rpc.inference.Chat(request, metadata=caller.metadata("blue"))
        foreign = (await gather(call)).done.usage.cached_tokens
        after_kill = await chat.reused(rooms(150, 60))
        hits = (await caller.read_archive_load()).hits_total
        await caller.unload()
        after_unload = await chat.reused(rooms(210, 80))
    async with run(tmp_path) as (corral, _), corral.sdk() as client:
        chat.client = client
        after_restart = await chat.reused("How many chairs has room 7?")

    assert list((tmp_path / "data" / "snapshots" / "archive" / "blocks").iterdir())
    assert chat.num_tokens > 1500
    assert (cold, foreign, hits) == (0, 0, 1)
    assert min(after_kill, after_unload, after_restart) >= 0.9


async def test_archiving_a_project_deletes_its_prefixes(tmp_path: Path) -> None:
    """Those of other projects stay."""
    async with run(tmp_path) as (corral, caller), connect(corral.control) as control:
        for project in ("red", "blue"):
            request = make_chat(user(LONG_TEXT), stopping={"max_tokens": 4})
            await gather(caller.rpc.inference.Chat(request, metadata=caller.metadata(project)))
        await caller.unload()
        num_before = len(archived_tokens(tmp_path))
        projects, mark = ProjectServiceStub(control.channel), corral.program.bookmark()
        create = project_service_pb2.CreateProjectRequest(project_id="red")
        await projects.CreateProject(create, metadata=caller.metadata("red"))
        archive = project_service_pb2.ArchiveProjectRequest(project_id="red")
        await projects.ArchiveProject(archive, metadata=caller.metadata("red"))
        await corral.program.line("call ended", after=mark, method=DROP)

    assert (num_before, len(archived_tokens(tmp_path))) == (2, 1)


async def test_a_full_disk_costs_only_warmth(tmp_path: Path) -> None:
    """Chats, unloads and the stop go on; what fits later is written then."""
    with mount_disk(tmp_path, 8) as disk:
        ballast = fill(disk, leave=0)
        snapshots = {"snapshots.folder": str(disk / "snapshots")}
        async with run(tmp_path, **snapshots) as (corral, caller), corral.sdk() as client:
            chat = Chat(client)
            await chat.reused(LONG_TEXT)
            await caller.unload()
            while_full = await chat.reused("How many chairs has room 7?")
            ballast.unlink()
            await caller.unload()
            after = await chat.reused("How many chairs has room 8?")
            fill(disk, leave=0)

    assert while_full == 0
    assert after >= 0.9


async def test_only_stored_objects_are_archived_in_that_scope(tmp_path: Path) -> None:
    """Which an operator may choose."""
    scope = {"snapshots.archive_scope": "stored"}
    async with run(tmp_path, **scope) as (corral, caller), corral.sdk() as client:
        chat = Chat(client)
        await chat.reused(LONG_TEXT)
        await caller.unload()
        after_unload = await chat.reused("How many chairs has room 7?")

    assert after_unload == 0
    assert not archived_tokens(tmp_path)
