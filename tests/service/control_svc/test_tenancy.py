"""Two projects never see each other's objects, whatever field another's id is written into.

`tests/support/tenancy.py` knows the services; nothing here names one.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from svc_kit.auth.scopes import METHOD_SCOPES
from tests.support.control import Client, RunningControl
from tests.support.examples import examples
from tests.support.postgres import empty
from tests.support.response_client import make_small_control
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

on_one_loop = pytest.mark.asyncio(loop_scope="module")
"""All calls reach one control service."""

METHODS = [method for service in services() for method in service.methods]
CALLERS = [method for method in METHODS if is_for_callers(method)]
OPERATORS = [method for method in METHODS if not is_for_callers(method)]


MINE = "mine"


def canary_of(name: str) -> str:
    """What all objects of a project say."""
    return f"canary-of-{name}"


@dataclass(frozen=True)
class Tenant:
    """A project with objects."""

    client: Client
    ids: Ids
    makers: Mapping[str, str]
    """Which service's objects each of the ids is of."""

    @classmethod
    async def make(
        cls, running: RunningControl, name: str, services: Iterable[str] = RESOURCES
    ) -> "Tenant":
        """One of everything that these services have, with a canary in it."""
        client = running.of_project(name)
        ids: dict[str, str] = {}
        makers: dict[str, str] = {}
        for service in services:
            made = await RESOURCES[service].create(client, canary_of(name))
            ids |= made
            makers |= dict.fromkeys(made, service)
        return cls(client, ids, makers)

    async def observe(self) -> list[object]:
        """Everything that it sees of its own."""
        return [await each.observe(self.client, self.ids) for each in RESOURCES.values()]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """An empty database of each kind, for all tests: what each one makes is in a project of its
    own."""
    if request.param == "sqlite":
        return None
    url: str = request.getfixturevalue("postgres")
    empty(url)
    return url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, database_url: str | None
) -> AsyncIterator[RunningControl]:
    """One control service that all projects share."""
    folder = tmp_path_factory.mktemp("tenancy")
    async with make_small_control(folder, database_url, patience_s=None) as control:
        yield control


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mine(running: RunningControl) -> Tenant:
    """Whose objects nobody else may see, or change: an object of every kind."""
    return await Tenant.make(running, MINE)


@pytest_asyncio.fixture(loop_scope="module")
async def other(running: RunningControl, mine: Tenant, method: MethodDescriptor) -> Tenant:
    """Who tries: a new project with what a good call of the method names."""
    needed = {mine.makers[kind] for kind in kinds_of(method)}
    return await Tenant.make(running, f"other-{uuid4()}", sorted(needed))


@pytest_asyncio.fixture(loop_scope="module")
async def rival(running: RunningControl) -> Tenant:
    """Who tries anything: an object of every kind."""
    return await Tenant.make(running, f"rival-{uuid4()}")


class _Asked(dict[str, str]):
    """Ids that remember which of them were asked for."""

    def __missing__(self, kind: str) -> str:
        self[kind] = kind
        return kind


def kinds_of(method: MethodDescriptor) -> Collection[str]:
    """The kinds of objects that a good call names."""
    asked = _Asked()
    a_call(method, asked, {})
    return asked


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


@on_one_loop
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


@on_one_loop
@pytest.mark.parametrize("method", CALLERS, ids=path_of)
async def test_a_good_call_is_answered(other: Tenant, method: MethodDescriptor) -> None:
    """So what is refused above is refused for the id alone."""
    wanted = RESOURCES[method.containing_service.full_name].answers.get(method.name, "OK")
    assert (await answer(other.client, method, a_call(method, other.ids, {}))).startswith(wanted)


@on_one_loop
@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
async def test_no_mixture_of_ids_reaches_another_project(
    mine: Tenant, rival: Tenant, data: Any
) -> None:
    """Several texts of any call at once, the rest of it as it should be."""
    before = await mine.observe()
    method = data.draw(
        st.sampled_from([each for each in CALLERS if places(a_call(each, rival.ids, {}))])
    )
    every = places(a_call(method, rival.ids, {}))
    assume(every)
    foreign = st.sampled_from(sorted(mine.ids.values()))
    texts = data.draw(st.dictionaries(st.sampled_from(every), foreign, min_size=1, max_size=3))
    never = {place: unknown(text) for place, text in texts.items()}

    seen = await answer(rival.client, method, a_call(method, rival.ids, texts))
    unseen = await answer(rival.client, method, a_call(method, rival.ids, never))

    for text in texts.values():
        seen = seen.replace(text, unknown(text))
    assert seen == unseen
    assert canary_of(MINE) not in seen
    assert await mine.observe() == before


@on_one_loop
@pytest.mark.parametrize("method", OPERATORS, ids=path_of)
async def test_what_operators_do_no_caller_does(
    running: RunningControl, mine: Tenant, method: MethodDescriptor
) -> None:
    """Refused for the scope, before any id is looked at."""
    caller = running.of_project("other")
    empty = [GetMessageClass(method.input_type)()]
    for place in [None, *places(empty)]:
        messages = [GetMessageClass(method.input_type)()]
        if place is not None:
            place.write(messages, mine.ids["file"])
        seen = await answer(caller, method, messages)

        assert "SCOPE_MISSING" in seen
        assert METHOD_SCOPES[path_of(method)].value in seen
