"""The work of operators who add and remove models while processes are killed."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import inference_service_pb2, model_pb2
from google.protobuf.message import Message

from tests.support.chaos import WorkCounter
from tests.support.model_hub import ModelHub
from tests.support.rpc import Rpc, connect, make_completion
from tests.support.services import MODEL, Corral

MODEL_FILE: Final = "noise-Q8_0.gguf"
MOST_MODELS: Final = 40
"""Above which each addition is followed by a removal, so that long runs do not slow down."""
State = model_pb2.Model.State


class ModelWork:
    """Models that were added are there and usable, and those that were removed are not."""

    def __init__(self, hub: ModelHub, rng: random.Random) -> None:
        self._hub = hub
        self._rng = rng
        self._number = 0
        self._added: set[str] = set()

    async def run(self, corral: Corral, counter: WorkCounter, stop: asyncio.Event) -> None:
        """Add models, whose downloads break off now and then, and remove some of them."""
        async with connect(corral.target) as rpc:
            while not stop.is_set():
                self._number += 1
                name = f"added-{self._number}"
                self._hub.cuts.append(self._rng.randrange(len(self._hub.files[MODEL_FILE])))
                source = f"{self._hub.url(MODEL_FILE)}?{name}"  # a download of its own
                await _repeat(rpc.engine.AddModel, pb.AddModelRequest(source=source, name=name))
                self._added.add(name)
                if self._rng.random() < 0.5 or len(self._added) > MOST_MODELS:
                    removed = self._rng.choice(sorted(self._added))
                    await _repeat(rpc.engine.RemoveModel, pb.RemoveModelRequest(model=removed))
                    self._added.remove(removed)
                counter.add()

    async def check(self, corral: Corral) -> None:
        """The acknowledged models are listed, each can be used, and no file of others is left."""
        async with connect(corral.target) as rpc:
            for name in sorted(self._added):
                await _wait_until_added(rpc, name)
            assert await _list_names(rpc) == {*self._added, MODEL}
            if self._added:
                completion = make_completion("a", stopping={"max_tokens": 1, "ignore_eos": True})
                completion.model = max(self._added)
                assert (await rpc.generate(completion)).finished[0].completion_tokens == 1
        data = corral.program.directory / "data" / "models" / "added"
        folders = await asyncio.to_thread(lambda: list(data.iterdir()))
        assert len(folders) == len(self._added)


async def _list_names(rpc: Rpc) -> set[str]:
    """The names of all models, over all pages."""
    names, token = set[str](), None
    while token != "":
        request = inference_service_pb2.ListModelsRequest(pending=True, page_token=token)
        page = await rpc.inference.ListModels(request)
        names |= {model.name for model in page.models}
        token = page.next_page_token
    return names


async def _repeat(method: Callable[..., Awaitable[Any]], request: Message) -> None:
    """Call until an answer arrives; what is not there any more was removed by a lost call."""
    while True:
        try:
            await method(request, wait_for_ready=True)
            return
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise


async def _wait_until_added(rpc: Rpc, name: str) -> None:
    watch = rpc.engine.WatchModels(pb.WatchModelsRequest(model=name))
    async for answer in watch:
        assert answer.model.state != State.STATE_FAILED, answer.model.problem
        if answer.model.state not in (State.STATE_DOWNLOADING, State.STATE_VERIFYING):
            watch.cancel()
            return
