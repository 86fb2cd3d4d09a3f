"""Conversations that only the client keeps stay warm while engine and inference service are killed:
the next turn starts from what was on disk then, and its answer is that of an undisturbed engine.
"""

import asyncio
import logging
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from corral.inference.v1 import chat_pb2, generation_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.snapshots.store import FolderLimits, SnapshotStore
from svc_kit.auth.authenticator import ServiceToken
from tests.chaos.test_chaos import LONG_KILLS, SHORT_KILLS, make_rng
from tests.support import archive_writer
from tests.support.archive_writer import LIMITS, SAVED, make_prefix
from tests.support.archives import Caller, archived_tokens
from tests.support.chaos import LOCAL_KILLS
from tests.support.rpc import Answer, connect, gather, make_chat, user
from tests.support.services import Corral, corral_up, wait_until_serving
from tests.support.upgrade_client import wait_until

log = logging.getLogger(__name__)
pytestmark = pytest.mark.e2e

ROOM: Final = {"engine.saved_prefix_mib": 64}
MOMENTS: Final = ("written", "damaged", "ended", "answering")
"""When a process is killed: when the last turn is on disk, of which a file is damaged then or not;
as soon as it has ended; or in the middle of the next answer."""
NUM_ROOMS, MAX_TURNS = 26, 3
"""Of a turn, and of a conversation: longer ones do not fit into the demo model's context."""
ROUNDING: Final = 0.3
"""Of log probabilities. Batches of other sizes changed them by up to 0.08."""
LOST_TOKENS: Final = 64
"""A prefix with so many tokens more than memory has is worth reading."""


@dataclass
class WarmDrill:
    """One conversation after the other, each of a project of its own."""

    corral: Corral
    caller: Caller
    rng: random.Random
    project: str = ""
    messages: list[chat_pb2.ChatMessage] = field(default_factory=list)

    def num_on_disk(self) -> int:
        """The number of tokens in the longest file of the conversation."""
        return max(archived_tokens(self.corral.program.directory, self.project), default=0)

    def ask(self) -> None:
        """Append a question after some 300 tokens of text."""
        first = self.rng.randrange(1000)
        numbers = range(first, first + NUM_ROOMS)
        text = " ".join(f"Room {each} has {each + 2} red chairs." for each in numbers)
        self.messages.append(user(f"{text} How many chairs has room {first + 3}?"))

    async def answer(self, *, reuse: bool = True) -> Answer:
        """The answer to the last message, which is asked again until there is one."""
        while True:
            await asyncio.to_thread(wait_until, self._is_serving, "there is no service")
            try:
                await self.caller.wait_for_model_digest()
                return await gather(self._send(reuse=reuse))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise

    def _is_serving(self) -> bool:
        wait_until_serving(self.corral.target)
        return True

    def _send(
        self, *, reuse: bool = True, **stopping: Any
    ) -> "grpc.aio.UnaryStreamCall[pb.ChatRequest, pb.ChatResponse]":
        request = make_chat(
            *self.messages,
            output={"top_logprobs": 2},
            stopping={"max_tokens": 16, **stopping},
            cache=generation_pb2.CacheOptions(reuse=reuse),
        )
        return self.caller.rpc.inference.Chat(request, metadata=self.caller.metadata(self.project))

    async def survive(self, moment: str) -> int:
        """Hold a conversation, kill the engine or the service, and check the next turn; returns how
        many of its tokens were reused."""
        self.project = f"project-{self.rng.getrandbits(64):x}"
        self.messages = []
        num_turns = self.rng.randint(1, MAX_TURNS)
        for turn in range(1, num_turns + 1):
            self.ask()
            answer = await self.answer()
            part = chat_pb2.ContentPart(text=answer.text[0])
            self.messages.append(chat_pb2.ChatMessage(role=chat_pb2.ROLE_ASSISTANT, parts=[part]))
            if turn == 1 < num_turns or moment in ("written", "damaged"):
                await asyncio.to_thread(self._wait_until_written, answer.done.usage.prompt_tokens)
        self.ask()
        if moment == "answering":
            stream = aiter(self._send(max_tokens=200, ignore_eos=True))
            for _ in range(self.rng.randint(1, 30)):
                await anext(stream)
        kill = LOCAL_KILLS[self.rng.choice(("engine", "frontend"))]
        assert await asyncio.to_thread(kill, self.corral)
        num_on_disk = self.num_on_disk()
        if moment == "damaged":
            num_on_disk = 0
            self._damage_file()
        answer = await self.answer()
        usage = answer.done.usage
        undisturbed = await self.answer(reuse=False)

        check_equal(answer, undisturbed)
        assert undisturbed.done.usage.cached_tokens == 0
        assert usage.cached_tokens >= min(num_on_disk, usage.prompt_tokens) - LOST_TOKENS
        return usage.cached_tokens

    def _wait_until_written(self, num_tokens: int) -> None:
        wait_until(lambda: self.num_on_disk() >= num_tokens, "the turn is not written")

    def _damage_file(self) -> None:
        """Change a byte of a prefix or of a block, or cut it off."""
        archive = self.corral.program.directory / "data" / "snapshots" / "archive"
        kind = self.rng.choice(("*.snapshot", "blocks/*.block"))
        path = max(archive.glob(kind), key=lambda each: each.stat().st_mtime_ns)
        data = bytearray(path.read_bytes())
        at = self.rng.randrange(len(data))
        data[at] ^= 1 << self.rng.randrange(8)
        path.write_bytes(data if self.rng.random() < 0.5 else data[:at])


def check_equal(answer: Answer, undisturbed: Answer) -> None:
    """Assert that two answers are equal up to a token that is as probable as another one, since
    batches of other sizes round differently."""
    for own, other in zip(answer.logprobs[0], undisturbed.logprobs[0], strict=False):
        if own.chosen.token_id != other.chosen.token_id:
            assert own.top[1].token_id == other.chosen.token_id
            assert own.top[0].logprob - own.top[1].logprob < ROUNDING
            return
        assert abs(own.chosen.logprob - other.chosen.logprob) < ROUNDING
    assert answer.text == undisturbed.text


async def keep_warm(folder: Path, rng: random.Random, num_kills: int) -> None:
    """Kill that often, at each moment equally often."""
    reused = defaultdict[str, list[int]](list)
    with corral_up(folder, inference=ROOM) as corral:
        token = ServiceToken.read(folder / "data" / "service-token").secret
        async with connect(corral.target) as rpc:
            drill = WarmDrill(corral, Caller(rpc, token), rng)
            for moment, _ in zip(cycle(rng.sample(MOMENTS, len(MOMENTS))), range(num_kills)):
                reused[moment].append(await drill.survive(moment))
    log.warning("tokens that were reused after kills: %s", dict(reused))


async def test_conversations_stay_warm_after_random_kills(tmp_path: Path) -> None:
    """What was on disk is reused, and damaged files are not."""
    await keep_warm(tmp_path, make_rng(None), SHORT_KILLS)


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
async def test_conversations_stay_warm_after_many_kills(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The same for as long as it is told to, with the same archive."""
    rng = make_rng(request.config.getoption("--seed", None))
    for number in range(request.config.getoption("--rounds", 1)):
        log.warning("round %d", number + 1)
        await keep_warm(tmp_path, rng, LONG_KILLS)


@pytest.mark.parametrize("num_kills", [6, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.timeout(3600)
def test_no_kill_in_the_middle_of_a_write_leaves_a_wrong_file(
    tmp_path: Path, num_kills: int
) -> None:
    """What was written before can be read, byte for byte, and nothing stays that is in no file."""
    rng = make_rng(None)
    limits = FolderLimits(tmp_path / "archive", *LIMITS)
    for _ in range(num_kills):
        command = [
            sys.executable,
            "-m",
            archive_writer.__name__,
            str(limits.path),
            str(rng.random()),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            lines = list(islice(writer.stdout or (), rng.randint(1, 40)))
            writer.kill()
            lines += writer.stdout or ()
        store = SnapshotStore(limits)
        saved = [line.removeprefix(SAVED).strip() for line in lines if line.startswith(SAVED)]
        assert {*saved[-1:]} <= {*store.ids()}
        for snapshot_id in store.ids():
            with store.open(snapshot_id) as reader:
                tokens = reader.snapshot.origin.tokens
                expected = make_prefix(tokens[0], len(tokens))[1] if tokens else b""
                assert reader.read_state() == expected
        assert store.usage.num_bytes <= limits.max_bytes
    store.drop(store.ids())

    assert store.usage == (0, 0)
    assert not list(limits.path.glob("*.unfinished"))
