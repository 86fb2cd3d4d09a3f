"""Two projects never see each other's objects, whatever field another's id is written into.

`tests/support/tenancy.py` knows the services; nothing here names one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from svc_kit.scopes import METHOD_SCOPES
from tests.support.control import Client, RunningControl
from tests.support.tenancy import (
    RESOURCES,
    Ids,
    Place,
    answer,
    is_for_callers,
    path_of,
    places,
    services,
    unknown,
    unregistered,
)

METHODS = [method for service in services() for method in service.methods]
CALLERS = [method for method in METHODS if is_for_callers(method)]
OPERATORS = [method for method in METHODS if not is_for_callers(method)]


MINE = "mine"


def canary_of(name: str) -> str:
    """What all objects of a project say."""
    return f"canary-of-{name}"


@dataclass(frozen=True)
class Tenant:
    """A project with an object of every kind."""

    client: Client
    ids: Ids

    @classmethod
    async def make(cls, running: RunningControl, name: str) -> "Tenant":
        """One of everything, with a canary in it."""
        client = running.of_project(name)
        ids: dict[str, str] = {}
        for resource in RESOURCES.values():
            ids |= await resource.create(client, canary_of(name))
        return cls(client, ids)

    async def observe(self) -> list[object]:
        """Everything that it sees of its own."""
        return [await each.observe(self.client, self.ids) for each in RESOURCES.values()]


@pytest.fixture
async def mine(running: RunningControl) -> Tenant:
    """Whose objects nobody else may see."""
    return await Tenant.make(running, MINE)


@pytest.fixture
async def other(running: RunningControl) -> Tenant:
    """Who tries."""
    return await Tenant.make(running, "other")


def a_call(method: MethodDescriptor, ids: Ids, texts: Mapping[Place, str]) -> Sequence[Message]:
    """A good call, but for these texts."""
    calls = RESOURCES[method.containing_service.full_name].calls
    messages = calls[method.name](ids)
    for place, text in texts.items():
        place.write(messages, text)
    return messages


def test_nobody_forgot_to_register_an_rpc() -> None:
    """An RPC that is not tried here could tell one project of another."""
    assert unregistered() == []


@pytest.mark.parametrize("method", CALLERS, ids=path_of)
async def test_anothers_id_is_as_one_that_never_was(
    mine: Tenant, other: Tenant, method: MethodDescriptor
) -> None:
    """Every id of one project where an RPC of the other names objects, and one in every other text:
    NOT_FOUND where it names what is called, nowhere anything that tells it from an id that nobody
    has, and no change."""
    before = await mine.observe()
    refusals = RESOURCES[method.containing_service.full_name].refusals
    good = a_call(method, other.ids, {})
    every = sorted(mine.ids.values())
    for number, place in enumerate(places(good)):
        names_an_object = set(place.read(good)) & set(other.ids.values())
        may_name_one = names_an_object or place.field.endswith(("id", "ids"))
        for foreign in every if may_name_one else [every[number % len(every)]]:
            seen = await answer(other.client, method, a_call(method, other.ids, {place: foreign}))
            never = unknown(foreign)
            unseen = await answer(other.client, method, a_call(method, other.ids, {place: never}))

            assert seen.replace(foreign, never) == unseen, f"{place}: {foreign}"
            assert canary_of(MINE) not in seen
            if names_an_object:
                wanted = refusals.get(place.field, "NotFound")
                assert wanted in seen, f"{place}: {foreign}"
    assert await mine.observe() == before


@pytest.mark.parametrize("method", CALLERS, ids=path_of)
async def test_a_good_call_is_answered(other: Tenant, method: MethodDescriptor) -> None:
    """So what is refused above is refused for the id alone."""
    wanted = RESOURCES[method.containing_service.full_name].answers.get(method.name, "OK")
    assert (await answer(other.client, method, a_call(method, other.ids, {}))).startswith(wanted)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_no_mixture_of_ids_reaches_another_project(
    mine: Tenant, other: Tenant, data: Any
) -> None:
    """Several texts of any call at once, the rest of it as it should be."""
    before = await mine.observe()
    method = data.draw(
        st.sampled_from([each for each in CALLERS if places(a_call(each, other.ids, {}))])
    )
    every = places(a_call(method, other.ids, {}))
    assume(every)
    foreign = st.sampled_from(sorted(mine.ids.values()))
    texts = data.draw(st.dictionaries(st.sampled_from(every), foreign, min_size=1, max_size=3))
    never = {place: unknown(text) for place, text in texts.items()}

    seen = await answer(other.client, method, a_call(method, other.ids, texts))
    unseen = await answer(other.client, method, a_call(method, other.ids, never))

    for text in texts.values():
        seen = seen.replace(text, unknown(text))
    assert seen == unseen
    assert canary_of(MINE) not in seen
    assert await mine.observe() == before


@pytest.mark.parametrize("method", OPERATORS, ids=path_of)
async def test_what_operators_do_no_caller_does(
    other: Tenant, mine: Tenant, method: MethodDescriptor
) -> None:
    """Refused for the scope, before any id is looked at."""
    empty = [GetMessageClass(method.input_type)()]
    for place in [None, *places(empty)]:
        messages = [GetMessageClass(method.input_type)()]
        if place is not None:
            place.write(messages, mine.ids["file"])
        seen = await answer(other.client, method, messages)

        assert "SCOPE_MISSING" in seen
        assert METHOD_SCOPES[path_of(method)].value in seen
