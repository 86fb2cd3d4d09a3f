"""The model pool under random calls, loads, unloads, crashes and failing loads: what is used stays,
what is loaded fits, and nobody waits for nothing."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference_svc.model_pool.eviction import ModelState, check_integrity
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.placement import Placement
from svc_kit.errors import DomainError, ModelLoading, ModelTooLarge
from tests.support.examples import examples
from tests.support.pooled import BUDGET, GIB, Pooled, a_known, settle

NAMES = ["small", "middle", "other", "large", "pinned", "huge"]
FREE = DeviceBytes(100 * GIB, {"CUDA0": 5 * GIB})
ON_GPU = LayerSplit(Placement(), num_layers=31)
HALF_ON_GPU = LayerSplit(Placement(gpu_layers=16), num_layers=31)
names = st.sampled_from(NAMES)


class Call:
    """A call that uses a model until it is told to end."""

    def __init__(self, pooled: Pooled, name: str) -> None:
        self.name = name
        self.is_using = False
        self.error: DomainError | None = None
        self._enough = asyncio.Event()
        self.task = asyncio.create_task(self._use(pooled))

    async def _use(self, pooled: Pooled) -> None:
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(pooled.pool.use(pooled[self.name]))
                self.is_using = True
                await self._enough.wait()
        except DomainError as error:
            self.error = error
        finally:
            self.is_using = False

    def end(self) -> None:
        """The call has what it wanted."""
        self._enough.set()


class PoolMachine(RuleBasedStateMachine):
    """Drives a pool of six models, of which about two fit; one can never fit. Two are on a GPU that
    holds one of them, one is there by half."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.calls: list[Call] = []
        self.pooled = self.runner.run(self._started())

    async def _started(self) -> Pooled:
        pooled = Pooled(
            a_known("small", 2, spread=HALF_ON_GPU),
            a_known("middle", 3, spread=ON_GPU),
            a_known("other", 3.5, spread=ON_GPU),
            a_known("large", 6),
            a_known("pinned", 2, pinned=True),
            a_known("huge", 12),
            wait_s=1e6,
            patience_s=1e6,
            free=FREE,
        )
        return await pooled.started(at_once=False)

    def _do(self, action: Coroutine[Any, Any, None] | None = None) -> None:
        async def act() -> None:
            if action is not None:
                await action
            await settle()

        self.pooled.clock.now += 1
        self.runner.run(act())

    @rule(name=names)
    def call(self, name: str) -> None:
        """A call begins."""

        async def begin() -> None:
            self.calls.append(Call(self.pooled, name))

        self._do(begin())

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end_a_call(self, data: st.DataObject) -> None:
        """A call ends, or its caller goes away while it waits."""
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        call.end() if call.is_using else call.task.cancel()
        self._do()

    @precondition(lambda self: self.pooled.loader.loading())
    @rule(fails=st.sampled_from([False, False, False, True]))
    def end_a_load(self, fails: bool) -> None:
        """The one load under way ends."""
        (engine,) = self.pooled.loader.loading()

        async def end() -> None:
            engine.breaks() if fails else engine.loads()

        self._do(end())

    @rule(name=names)
    def load(self, name: str) -> None:
        """An operator loads a model in the background."""

        async def begin() -> None:
            try:
                await self.pooled.pool.load(self.pooled[name], wait=False)
            except ModelTooLarge:
                assert name == "huge"
            except ModelLoading:
                assert self.pooled[name].state is ModelState.UNLOADING

        self._do(begin())

    @rule(name=names, force=st.booleans())
    def unload(self, name: str, force: bool) -> None:
        """An operator unloads a model; by force its calls end soon."""

        async def begin() -> None:
            known = self.pooled[name]
            await self.pooled.pool.unload(known, force=force, wait=False)
            for call in self.calls:
                if force and call.name == name and call.is_using:
                    call.end()

        self._do(begin())

    @rule(name=names)
    def an_engine_dies_or_comes_back(self, name: str) -> None:
        """What it left meanwhile it takes again."""

        async def change() -> None:
            for engine in self.pooled.loader.alive(name):
                if self.pooled[name].is_down:
                    engine.recovers()
                elif self.pooled[name].state is ModelState.READY:
                    engine.dies()

        self._do(change())

    @invariant()
    def the_numbers_agree(self) -> None:
        """States, uses and memory of every model; uses are those of the calls."""
        check_integrity(known.resident for known in self.pooled.catalog)
        for name in NAMES:
            using = [call for call in self.calls if call.name == name and call.is_using]
            assert len(using) == self.pooled[name].resident.uses

    @invariant()
    def what_is_in_memory_fits(self) -> None:
        """Never more than the budget, nor than the GPU has, and one load at a time."""
        held = sum((known.resident.held for known in self.pooled.catalog), DeviceBytes())
        assert held.total <= BUDGET
        assert held.devices.get("CUDA0", 0) <= FREE.devices["CUDA0"]
        assert len(self.pooled.loader.loading()) <= 1
        assert not self.pooled.loader.alive("huge")

    @invariant()
    def a_model_in_memory_has_one_engine(self) -> None:
        """And one that is not has none: nothing leaks."""
        for known in self.pooled.catalog:
            alive = self.pooled.loader.alive(known.name)
            if known.resident.state is ModelState.READY:
                assert [id(each) for each in alive] == [id(known.worker)]
            if known.resident.state in (ModelState.AVAILABLE, ModelState.FAILED):
                assert alive == []

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """A call that waits has a load or an unload to wait for."""
        for call in self.calls:
            if not call.task.done() and not call.is_using:
                state = self.pooled[call.name].resident.state
                assert state in (ModelState.LOADING, ModelState.UNLOADING)

    def teardown(self) -> None:
        """Once calls end, everything that waits comes to its end."""
        self.pooled.loader.at_once = True

        async def end() -> None:
            for _ in range(2 * len(self.calls) + 2):
                for engine in self.pooled.loader.loading():
                    engine.loads()
                for call in self.calls:
                    call.end()
                await settle()
            waiting = [call.name for call in self.calls if not call.task.done()]
            await self.pooled.pool.close()
            await asyncio.gather(*(call.task for call in self.calls), return_exceptions=True)
            assert waiting == []

        self.runner.run(end())
        self.runner.close()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(60), stateful_step_count=25)
