"""The model pool under random calls, loads, unloads, crashes and failing loads.

Models in use stay loaded, loaded models fit, and every waiting call has a transition to wait for.
"""

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
from tests.support.pooled import BUDGET, GIB, PoolHarness, make_entry, settle

NAMES = ["small", "middle", "other", "large", "pinned", "huge"]
FREE = DeviceBytes(100 * GIB, {"CUDA0": 5 * GIB})
ON_GPU = LayerSplit(Placement(), num_layers=31)
HALF_ON_GPU = LayerSplit(Placement(gpu_layers=16), num_layers=31)
names = st.sampled_from(NAMES)


class Call:
    """A call that uses a model until `end`."""

    def __init__(self, harness: PoolHarness, name: str) -> None:
        self.name = name
        self.is_using = False
        self.error: DomainError | None = None
        self._ended = asyncio.Event()
        self.task = asyncio.create_task(self._use(harness))

    async def _use(self, harness: PoolHarness) -> None:
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(harness.pool.use(harness[self.name]))
                self.is_using = True
                await self._ended.wait()
        except DomainError as error:
            self.error = error
        finally:
            self.is_using = False

    def end(self) -> None:
        """Stop using the model."""
        self._ended.set()


class PoolMachine(RuleBasedStateMachine):
    """A pool of six models, of which about two fit; one can never fit.

    Two use a GPU that fits one of them, and one uses it for half of its layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.calls: list[Call] = []
        self.harness = self.runner.run(self._start())

    async def _start(self) -> PoolHarness:
        harness = PoolHarness(
            make_entry("small", 2, layer_split=HALF_ON_GPU),
            make_entry("middle", 3, layer_split=ON_GPU),
            make_entry("other", 3.5, layer_split=ON_GPU),
            make_entry("large", 6),
            make_entry("pinned", 2, pinned=True),
            make_entry("huge", 12),
            wait_s=1e6,
            memory_wait_s=1e6,
            free=FREE,
        )
        return await harness.start(loads_immediately=False)

    def _run(self, action: Coroutine[Any, Any, None] | None = None) -> None:
        async def act() -> None:
            if action is not None:
                await action
            await settle()

        self.harness.clock.now += 1
        self.runner.run(act())

    @rule(name=names)
    def call(self, name: str) -> None:
        async def begin() -> None:
            self.calls.append(Call(self.harness, name))

        self._run(begin())

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end_a_call(self, data: st.DataObject) -> None:
        """End a call, or cancel it while it waits."""
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        call.end() if call.is_using else call.task.cancel()
        self._run()

    @precondition(lambda self: self.harness.loader.loading())
    @rule(fails=st.sampled_from([False, False, False, True]))
    def end_a_load(self, fails: bool) -> None:
        (engine,) = self.harness.loader.loading()

        async def end() -> None:
            engine.fail_load() if fails else engine.finish_load()

        self._run(end())

    @rule(name=names)
    def load(self, name: str) -> None:
        async def begin() -> None:
            try:
                await self.harness.pool.load(self.harness[name], wait=False)
            except ModelTooLarge:
                assert name == "huge"
            except ModelLoading:
                assert self.harness[name].state is ModelState.UNLOADING

        self._run(begin())

    @rule(name=names, force=st.booleans())
    def unload(self, name: str, force: bool) -> None:
        """Unload a model; a forced unload ends its calls."""

        async def begin() -> None:
            entry = self.harness[name]
            await self.harness.pool.unload(entry, force=force, wait=False)
            for call in self.calls:
                if force and call.name == name and call.is_using:
                    call.end()

        self._run(begin())

    @rule(name=names)
    def crash_or_recover_an_engine(self, name: str) -> None:
        async def change() -> None:
            for engine in self.harness.loader.alive(name):
                if self.harness[name].is_down:
                    engine.recover()
                elif self.harness[name].state is ModelState.READY:
                    engine.crash()

        self._run(change())

    @invariant()
    def counts_match_states_and_calls(self) -> None:
        """State, uses and memory of every model are consistent."""
        check_integrity(entry.resident for entry in self.harness.catalog)
        for name in NAMES:
            using = [call for call in self.calls if call.name == name and call.is_using]
            assert len(using) == self.harness[name].resident.num_uses

    @invariant()
    def loaded_models_fit(self) -> None:
        """Loaded models fit into the budget and the GPU, and one is loaded at a time."""
        used = sum((entry.resident.memory for entry in self.harness.catalog), DeviceBytes())
        assert used.total <= BUDGET
        assert used.devices.get("CUDA0", 0) <= FREE.devices["CUDA0"]
        assert len(self.harness.loader.loading()) <= 1
        assert not self.harness.loader.alive("huge")

    @invariant()
    def a_loaded_model_has_exactly_one_engine(self) -> None:
        """A ready model has one engine; an available or failed one has none."""
        for entry in self.harness.catalog:
            alive = self.harness.loader.alive(entry.name)
            if entry.resident.state is ModelState.READY:
                assert [id(engine) for engine in alive] == [id(entry.engine)]
            if entry.resident.state in (ModelState.AVAILABLE, ModelState.FAILED):
                assert alive == []

    @invariant()
    def a_waiting_call_has_a_transition_to_wait_for(self) -> None:
        """A call waits only for a model that is loading or unloading."""
        for call in self.calls:
            if not call.task.done() and not call.is_using:
                state = self.harness[call.name].resident.state
                assert state in (ModelState.LOADING, ModelState.UNLOADING)

    def teardown(self) -> None:
        """Check that all waiting calls complete once loads and calls end."""
        self.harness.loader.loads_immediately = True

        async def end() -> None:
            for _ in range(2 * len(self.calls) + 2):
                for engine in self.harness.loader.loading():
                    engine.finish_load()
                for call in self.calls:
                    call.end()
                await settle()
            waiting = [call.name for call in self.calls if not call.task.done()]
            await self.harness.pool.close()
            await asyncio.gather(*(call.task for call in self.calls), return_exceptions=True)
            assert waiting == []

        self.runner.run(end())
        self.runner.close()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(60), stateful_step_count=25)
