"""The disk prefix cache: prefixes of stored objects survive eviction and restarts."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from corral.inference.v1 import chat_pb2 as chat
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb

from corral_cli.up.children import ensure_token
from svc_kit.auth.authenticator import ServiceToken
from tests.support.archives import ROOM, TURN, WORDS, Caller
from tests.support.pictures import circle_png
from tests.support.rpc import Answer, Rpc, connect, gather, make_chat, options, read_error
from tests.support.services import run_inference, wait_until_serving

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class CacheFolder:
    folder: Path
    token: Path

    @contextmanager
    def run_server(self, **settings: object) -> Iterator[str]:
        """Run a server with the folder; yield its address."""
        options_with_token = {**ROOM, "service_token_file": str(self.token), **settings}
        with run_inference(self.folder, options_with_token) as service:
            yield service.target

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "data" / "snapshots" / "archive").glob("*.snapshot"))

    @asynccontextmanager
    async def connect(self, target: str) -> AsyncIterator[Caller]:
        """Connect as a Corral service, once the digest of the model is known."""
        async with connect(target) as rpc:
            caller = Caller(rpc, ServiceToken.read(self.token).secret)
            await caller.wait_for_model_digest()
            yield caller


@pytest.fixture
def cache_folder(tmp_path: Path) -> CacheFolder:
    token = tmp_path / "token"
    ensure_token(token)
    return CacheFolder(tmp_path, token)


def turns(number: int) -> list[int]:
    """Return the prompt of a thread after `number` turns."""
    return [49, *WORDS[: TURN + 20 * number]]


def reused(answer: Answer) -> tuple[int, int]:
    return answer.done.usage.cached_tokens, answer.done.usage.cache_source


NOTHING = (0, generation.CACHE_SOURCE_UNSPECIFIED)
FROM_DISK = (TURN + 1, generation.CACHE_SOURCE_DISK)


async def test_a_thread_resumes_from_disk(cache_folder: CacheFolder) -> None:
    """After eviction, a kill of its engine and a restart only the new turn is computed; another
    project reuses nothing, whose own prefix is written at the end. The load has the counts;
    prefixes can be dropped without a model."""
    with cache_folder.run_server() as target:
        async with cache_folder.connect(target) as caller:
            first = await caller.generate(turns(0), "thread_1")
            await caller.evict()
            (file,) = cache_folder.files
            modes = file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777
            second = await caller.generate(turns(1), "thread_1")
            load = await caller.read_archive_load()
            size = file.stat().st_size
            await caller.kill_engine()
            wait_until_serving(target)
            foreign = await caller.generate(turns(1), "thread_1", project="blue")
            third = await caller.generate(turns(2), "thread_1")

    with cache_folder.run_server(**{"engine.slots": 2}) as target:
        async with cache_folder.connect(target) as caller:
            fourth = await caller.generate(turns(3), "response_7")
            await caller.unload()
            dropped = await caller.drop_snapshots("thread_1")

    assert modes == (0o600, 0o700)
    assert (reused(first), reused(foreign)) == (NOTHING, NOTHING)
    assert [reused(turn) for turn in (second, third, fourth)] == [FROM_DISK] * 3
    assert (load.num_entries, load.num_bytes, load.max_entries) == (1, size, 256)
    assert (load.hits_total, load.misses_total, load.written_total) == (1, 1, 1)
    assert (dropped, cache_folder.files) == (2, [])


async def test_a_picture_resumes_from_disk(cache_folder: CacheFolder) -> None:
    """After a restart its turn is not computed again, and the answer is the same; another picture
    in its place reuses nothing."""

    async def look(caller: Caller, color: str) -> Answer:
        parts = [
            chat.ContentPart(image=chat.Media(data=circle_png(color))),
            chat.ContentPart(text="Which color is it?"),
        ]
        request = make_chat(
            chat.ChatMessage(role=chat.ROLE_USER, parts=parts),
            cache=generation.CacheOptions(keep_for="thread_1"),
        )
        return await gather(caller.rpc.inference.Chat(request, metadata=caller.metadata("red")))

    with cache_folder.run_server() as target:
        async with cache_folder.connect(target) as caller:
            first = await look(caller, "red")
            await caller.evict(num_tokens=300)  # beside which the memory has no room for it
            archived = cache_folder.files
    with cache_folder.run_server() as target:
        async with cache_folder.connect(target) as caller:
            other = await look(caller, "blue")
            again = await look(caller, "red")

    assert len(archived) == 1
    assert (reused(first), reused(other)) == (NOTHING, NOTHING)
    usage = again.done.usage
    assert reused(again) == (usage.prompt_tokens - 1, generation.CACHE_SOURCE_DISK)
    assert usage.cached_tokens > usage.image_tokens == 64
    assert [answer.text[0] for answer in (first, other, again)] == ["red", "blue", "red"]


async def test_damaged_or_dropped_prefixes_are_recomputed(cache_folder: CacheFolder) -> None:
    """A damaged file is deleted. Dropping an object deletes its prefixes everywhere."""
    with cache_folder.run_server() as target:
        async with cache_folder.connect(target) as caller:
            await caller.generate(turns(0), "thread_1")
            await caller.evict()
            (file,) = cache_folder.files
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
            damaged = await caller.generate(turns(1), "thread_1")
            remaining_files = cache_folder.files
            await caller.evict()
            resumed = await caller.generate(turns(2), "thread_1")
            dropped = await caller.drop_snapshots("thread_1", "thread_2")
            await caller.evict()
            files_after_drop = cache_folder.files
            after_drop = await caller.generate(turns(2), "thread_1")

    assert (reused(damaged), remaining_files) == (NOTHING, [])
    assert reused(resumed) == (TURN + 21, generation.CACHE_SOURCE_DISK)
    assert dropped == 1
    assert reused(after_drop) == NOTHING
    assert files_after_drop == []


async def test_a_group_of_projects_shares_prefixes(cache_folder: CacheFolder) -> None:
    """In slots and on disk. Other projects do not."""
    prompt = [48, *WORDS[:TURN]]
    with cache_folder.run_server(prefix_groups={"team": {"projects": ["red", "green"]}}) as target:
        async with cache_folder.connect(target) as caller:
            cached_tokens = []
            for project in ("red", "green", "blue"):
                answer = await caller.generate(prompt, project=project)
                cached_tokens.append(answer.done.usage.cached_tokens)
            await caller.generate(turns(0), "thread_1", project="red")
            await caller.evict()
            shared = await caller.generate(turns(1), "thread_1", project="green")

    assert cached_tokens == [0, TURN, 0]
    assert reused(shared) == FROM_DISK


async def test_only_services_can_name_objects(rpc: Rpc) -> None:
    """Other callers could read and delete prefixes of other objects."""
    request_options = options(cache=generation.CacheOptions(keep_for="thread_1"))
    request = pb.GenerateRequest(text="Hello", options=request_options)
    refusal = await read_error(rpc.inference.Generate(request))

    assert (refusal.code, refusal.reason) == (grpc.StatusCode.PERMISSION_DENIED, "SERVICE_ONLY")
    assert refusal.metadata == {"field": "cache.keep_for"}
