"""Limits of all units with real processes: used up while something is away, and counted exactly."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from corral.control.v1 import limit_service_pb2 as pb

from svc_kit.auth.keys import hash_key
from svc_kit.errors import DomainError
from svc_kit.rpc.client import open_channel
from tests.support.operators import Operator
from tests.support.rpc import CAPITAL
from tests.support.services import LONG_CONTEXT, MODEL, Corral

NUM_CHATS: Final = 25
"""So many fit in a budget."""
NUM_BEFORE: Final = 4
NUM_SLOTS: Final = 2
BUDGETS: Final = ("requests", "tokens", "cost")
UNITS: Final = (*BUDGETS, "concurrent_requests")
"""Each has a project of its name, whose key is the name too."""
INFERENCE: Final[dict[str, Any]] = {
    "usage_interval_s": 0.5,
    "engine.threads": 1,
    "engine.slots": 8,
}
GATEWAY: Final[dict[str, Any]] = {
    "keys": [{"name": unit, "sha256": hash_key(unit), "project": unit} for unit in (*UNITS, "free")]
}
CONTROL: Final[dict[str, Any]] = {"prices": {"*": {"prompt": 1, "completion": 1}}}
Answers = dict[str, list[httpx.Response]]


@dataclass(frozen=True)
class Caller:
    """Sends chats with the key of a project."""

    http: httpx.AsyncClient
    url: str
    key: str

    def _request(self, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": CAPITAL}]
        return {
            "url": f"{self.url}/v1/chat/completions",
            "headers": {"authorization": f"Bearer {self.key}"},
            "json": {"model": MODEL, "messages": messages, "max_tokens": 1} | fields,
        }

    async def send(self) -> httpx.Response:
        """Send a short chat."""
        return await self.http.post(**self._request())

    async def send_until(self, *statuses: int) -> list[httpx.Response]:
        """Send short chats until one is answered so."""
        answers = [await self.send()]
        async with asyncio.timeout(90):
            while answers[-1].status_code not in statuses:
                answers.append(await self.send())
        return answers

    @asynccontextmanager
    async def long_chat(self) -> AsyncIterator[int]:
        """Begin a chat that ends with the context; yield its status."""
        fields = {"stream": True, "max_tokens": LONG_CONTEXT // 2, "ignore_eos": True}
        async with self.http.stream("POST", **self._request(**fields)) as response:
            yield response.status_code


def num_tokens(answers: list[httpx.Response]) -> int:
    """All tokens of the chats that were served."""
    served = [each.json() for each in answers if each.status_code == httpx.codes.OK]
    return sum(each["usage"]["total_tokens"] for each in served)


def limit_of(unit: str) -> str:
    """The id of the limit of a unit; no other text has it."""
    return f"small.{unit}.limit"


async def use_up(caller: Caller) -> list[httpx.Response]:
    """Use what is left of a budget up; check its end and return the answers."""
    answers = await caller.send_until(429, 503)
    statuses = [each.status_code for each in answers]
    assert (caller.key, statuses) == (caller.key, [200] * (NUM_CHATS - NUM_BEFORE) + [429])
    assert answers[-1].json()["error"]["code"] == "insufficient_quota"
    return answers


async def use_slots(caller: Caller) -> None:
    """Use all slots at a time while the database is slow, and one again that is free."""
    async with contextlib.AsyncExitStack() as running:
        for _ in range(NUM_SLOTS - 1):
            assert await running.enter_async_context(caller.long_chat()) == 200
        async with caller.long_chat() as status:
            assert status == 200
            refused = [(await caller.send()) for _ in range(3)]
            assert [each.status_code for each in refused] == [429] * 3
            assert refused[0].json()["error"]["code"] == "rate_limit_exceeded"
        again = await caller.send_until(200)
        assert {each.status_code for each in again[:-1]} <= {429}  # until the end is known


async def wait_for_usage(operator: Operator, unit: str, used: int, amount: int) -> None:
    """Wait until so much of a budget is used, and the rest is not."""
    async with asyncio.timeout(60):
        bucket = pb.LimitBucket()
        while (bucket.used, bucket.held + bucket.remaining) != (used, amount - used):
            with contextlib.suppress(DomainError):  # the channel may not be connected again
                (bucket,) = (await operator.limit_buckets(limit_of(unit))).buckets
            await asyncio.sleep(0.2)


def amounts(tokens: int) -> dict[str, int]:
    """The budgets by unit: for `NUM_CHATS` chats of so many tokens, and less than one more."""
    num_tokens = NUM_CHATS * tokens + tokens // 2
    return {"requests": NUM_CHATS, "tokens": num_tokens, "cost": 1000 * num_tokens}


async def create_limits(operator: Operator, tokens: int) -> None:
    """A limit of each unit, for a project of its own."""
    for unit, amount in amounts(tokens).items():
        await operator.create_limit(limit_of(unit), unit.upper(), amount, "DAY", project=unit)
    slots = "concurrent_requests"
    await operator.create_limit(limit_of(slots), slots.upper(), NUM_SLOTS, "", project=slots)


async def wait_for_limits(folder: Path) -> None:
    """Wait until the inference service has noticed the limits, which it keeps in a file."""
    async with asyncio.timeout(60):
        known = b""
        while not all(limit_of(unit).encode() in known for unit in UNITS):
            await asyncio.sleep(0.1)
            with contextlib.suppress(FileNotFoundError):
                known = (folder / "data" / "limits").read_bytes()


@dataclass(frozen=True)
class LimitDrill:
    """A limit of each unit, of which some is used."""

    operator: Operator
    callers: dict[str, Caller]
    tokens: int
    """Of a chat."""
    before: Answers

    async def use_up(self) -> Answers:
        """Use all limits up at once; return the answers of the budgets."""
        answers, _ = await asyncio.gather(
            asyncio.gather(*(use_up(self.callers[unit]) for unit in BUDGETS)),
            use_slots(self.callers["concurrent_requests"]),
        )
        return dict(zip(BUDGETS, answers, strict=True))

    async def wait_for_usage(self, during: Answers) -> None:
        """Wait until exactly what was served is counted."""
        tokens = NUM_CHATS * self.tokens
        used = {"requests": NUM_CHATS, "tokens": tokens, "cost": 1000 * tokens}
        for unit, amount in amounts(self.tokens).items():
            assert num_tokens(self.before[unit] + during[unit]) == tokens
            await wait_for_usage(self.operator, unit, used[unit], amount)


@asynccontextmanager
async def limit_drill(corral: Corral, folder: Path) -> AsyncIterator[LimitDrill]:
    """Create the limits, and use some of each. The services have the settings above."""
    token = (folder / "data" / "service-token").read_text().strip()
    async with (
        open_channel(corral.control, token=token) as channel,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        operator = Operator(channel)
        callers = {unit: Caller(http, corral.url, unit) for unit in (*UNITS, "free")}
        tokens = num_tokens([await callers["free"].send()])
        await create_limits(operator, tokens)
        await wait_for_limits(folder)
        before = {unit: [await callers[unit].send() for _ in range(NUM_BEFORE)] for unit in UNITS}
        refused = [each.text for sent in before.values() for each in sent if each.is_error]
        assert refused == []
        yield LimitDrill(operator, callers, tokens, before)
