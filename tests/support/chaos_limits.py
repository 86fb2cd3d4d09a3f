"""Work for chaos tests: requests with a limit, sent to inference services as a gateway does."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import grpc

from tests.support.history import ATTEMPT_S, PAUSE_S, History
from tests.support.operators import Operator
from tests.support.rpc import Rpc, connect, gather, make_chat

AMOUNT: Final = 30
PERIOD_S: Final = 60


@dataclass(frozen=True)
class LimitWork:
    """Requests of a project with a limit for each minute are admitted as docs/operate/limits.md
    promises: those of one service exactly, and of several, up to the amount more for each
    fault."""

    history: History
    name: str
    targets: Sequence[str]
    token: str
    amounts_per_fault: int

    @property
    def project(self) -> str:
        return self.name.replace(" ", "-")

    async def create(self, operator: Operator) -> None:
        """Create the limit, and record its promise."""
        await operator.create_limit(self.project, "REQUESTS", AMOUNT, project=self.project)
        promise = {
            "amount": AMOUNT,
            "refill_per_s": AMOUNT / PERIOD_S,
            "excess_per_fault": AMOUNT * self.amounts_per_fault,
        }
        self.history.observe("drill", "promise", f"limit of {self.name}", told=promise)

    async def run(self, stop: asyncio.Event) -> None:
        """Send small chats to each service."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as callers:
            for target in self.targets:
                rpc = await stack.enter_async_context(connect(target))
                callers.create_task(self._send(rpc, stop))

    async def _send(self, rpc: Rpc, stop: asyncio.Event) -> None:
        process = self.history.new_process("limits")
        metadata = (
            ("authorization", f"Bearer {self.token}"),
            ("x-corral-project", self.project),
            ("x-corral-scopes", "inference"),
        )
        while not stop.is_set():
            with self.history.operation(process, "use", f"limit of {self.name}") as used:
                request = make_chat(stopping={"max_tokens": 1})
                try:
                    chat = rpc.inference.Chat(request, metadata=metadata, timeout=ATTEMPT_S)
                    await gather(chat)
                    used.told = 1
                except grpc.aio.AioRpcError as error:
                    is_refused = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                    used.outcome = "failed" if is_refused else "unknown"
            await asyncio.sleep(PAUSE_S)
