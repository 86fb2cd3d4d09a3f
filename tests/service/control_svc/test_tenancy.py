"""Projects cannot access each other's objects, whatever field contains a foreign id.

`tests/support/tenancy.py` describes the services; nothing here depends on one. That no combination
of ids reaches another project's rows is checked for each statement: `tests/support/statements.py`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pytest
import pytest_asyncio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from svc_kit.auth.scopes import method_options, method_path
from tests.support import tenancy
from tests.support.control import Client, RunningControl
from tests.support.examples import TIMES, every_nth
from tools.rpc_methods import list_services

on_one_loop = pytest.mark.asyncio(loop_scope="module")
"""All tests share one control service."""
on_sqlite = pytest.mark.parametrize("shared_database_url", ["sqlite"], indirect=True)
"""For what needs no second kind of database."""
on_postgres = pytest.mark.parametrize("shared_database_url", ["postgres"], indirect=True)

METHODS = [method for service in list_services("corral.control.") for method in service.methods]
CALLERS = [method for method in METHODS if tenancy.is_for_callers(method)]
OPERATORS = [method for method in METHODS if not tenancy.is_for_callers(method)]
MINE = "mine"


def make_canary(name: str) -> str:
    return f"canary-of-{name}"


@dataclass(frozen=True)
class Tenant:
    client: Client
    ids: tenancy.Ids
    services: Mapping[str, str]
    """The service of each id."""

    @classmethod
    async def make(
        cls, running: RunningControl, name: str, services: Iterable[str] = tenancy.RESOURCES
    ) -> "Tenant":
        """Create an object of each kind in these services, with a canary."""
        client = running.of_project(name)
        ids: dict[str, str] = {}
        owners: dict[str, str] = {}
        for service in services:
            created = await tenancy.RESOURCES[service].create(client, make_canary(name))
            ids |= created
            owners |= dict.fromkeys(created, service)
        return cls(client, ids, owners)

    def ids_of_all_kinds(self) -> list[str]:
        return list({each[:-32]: each for each in sorted(self.ids.values())}.values())

    async def observe(self) -> list[object]:
        return [await each.observe(self.client, self.ids) for each in tenancy.RESOURCES.values()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mine(shared_control: RunningControl) -> Tenant:
    """The project whose objects others try to access, with an object of each kind."""
    return await Tenant.make(shared_control, MINE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def objects(mine: Tenant) -> list[object]:
    """The objects of `mine`, which no call of another project changes."""
    return await mine.observe()


@pytest_asyncio.fixture(loop_scope="module")
async def other(shared_control: RunningControl, mine: Tenant, method: MethodDescriptor) -> Tenant:
    """A new project with the objects that a valid call of the method needs."""
    needed = {mine.services[kind] for kind in required_kinds(method)}
    return await Tenant.make(shared_control, f"other-{uuid4()}", sorted(needed))


class _RecordingIds(dict[str, str]):
    def __missing__(self, kind: str) -> str:
        self[kind] = kind
        return kind


def required_kinds(method: MethodDescriptor) -> Collection[str]:
    ids = _RecordingIds()
    tenancy.make_messages(method, ids)
    return ids


def build_call(
    method: MethodDescriptor, ids: tenancy.Ids, texts: Mapping[tenancy.TextField, str]
) -> Sequence[Message]:
    messages = tenancy.make_messages(method, ids)
    for place, text in texts.items():
        place.write(messages, text)
    return messages


def test_all_services_are_registered() -> None:
    """In `tests/support/tenancy.py`, so that all of their RPCs are tested here."""
    assert tenancy.unregistered_services() == []


@on_one_loop
@on_sqlite
@pytest.mark.parametrize("method", CALLERS, ids=method_path)
async def test_a_foreign_id_is_treated_as_unknown(
    mine: Tenant, objects: list[object], other: Tenant, method: MethodDescriptor
) -> None:
    """A foreign id in each text: NOT_FOUND if the field names an object, the same response as for
    an unknown id in all cases, and no change. A field with ids gets one of its kind and another,
    with `make properties` those of all kinds."""
    foreign_ids = mine.ids_of_all_kinds()
    valid = build_call(method, other.ids, {})
    for number, place in enumerate(tenancy.text_fields(valid)):
        of_kind = ids_of_kind(mine, other, place.read(valid))
        may_name_one = of_kind or place.field.endswith(("id", "ids"))
        another = [foreign_ids[number % len(foreign_ids)]]
        for foreign in of_kind + (foreign_ids if may_name_one and TIMES > 1 else another):
            await check_refusal(other, method, place, foreign, is_of_kind=bool(of_kind))
    assert await mine.observe() == objects


@on_one_loop
@on_postgres
@pytest.mark.parametrize("method", [*every_nth(CALLERS, 4)], ids=method_path)
async def test_a_foreign_id_is_treated_as_unknown_on_postgres(
    mine: Tenant, objects: list[object], other: Tenant, method: MethodDescriptor
) -> None:
    """Whose queries are the same: only fields with ids are tried, with one, and only in some RPCs
    without `make properties`."""
    foreign_ids = mine.ids_of_all_kinds()
    valid = build_call(method, other.ids, {})
    for number, place in enumerate(tenancy.text_fields(valid)):
        of_kind = ids_of_kind(mine, other, place.read(valid))
        if of_kind or place.field.endswith(("id", "ids")):
            for foreign in of_kind or [foreign_ids[number % len(foreign_ids)]]:
                await check_refusal(other, method, place, foreign, is_of_kind=bool(of_kind))
    assert await mine.observe() == objects


def ids_of_kind(mine: Tenant, other: Tenant, texts: Sequence[str]) -> list[str]:
    """The foreign ids of the kinds that a field of a valid call has."""
    return [mine.ids[kind] for kind, own in other.ids.items() if own in texts]


async def check_refusal(
    other: Tenant,
    method: MethodDescriptor,
    place: tenancy.TextField,
    foreign: str,
    *,
    is_of_kind: bool,
) -> None:
    """Check that a foreign id gets the response of an unknown one."""
    response = await tenancy.call_method(
        other.client, method, build_call(method, other.ids, {place: foreign})
    )
    unknown_id = tenancy.make_unknown_id(foreign)
    expected = await tenancy.call_method(
        other.client, method, build_call(method, other.ids, {place: unknown_id})
    )

    assert response.replace(foreign, unknown_id) == expected, f"{place}: {foreign}"
    assert make_canary(MINE) not in response
    if is_of_kind:
        refusals = tenancy.RESOURCES[method.containing_service.full_name].refusals
        assert refusals.get(place.field, "NotFound") in response, f"{place}: {foreign}"


@on_one_loop
@on_sqlite
@pytest.mark.parametrize("method", CALLERS, ids=method_path)
async def test_a_valid_call_succeeds(other: Tenant, method: MethodDescriptor) -> None:
    """So that the calls above fail because of the foreign id."""
    expected_error = tenancy.RESOURCES[method.containing_service.full_name].answers.get(
        method.name, "OK"
    )
    assert (
        await tenancy.call_method(other.client, method, build_call(method, other.ids, {}))
    ).startswith(expected_error)


@on_one_loop
@on_sqlite
@pytest.mark.parametrize("method", OPERATORS, ids=method_path)
async def test_operator_rpcs_are_refused_for_callers(
    shared_control: RunningControl, mine: Tenant, method: MethodDescriptor
) -> None:
    """With SCOPE_MISSING, before any id is checked."""
    caller = shared_control.of_project("other")
    empty = [GetMessageClass(method.input_type)()]
    for place in [None, *tenancy.text_fields(empty)]:
        messages = [GetMessageClass(method.input_type)()]
        if place is not None:
            place.write(messages, mine.ids["file"])
        response = await tenancy.call_method(caller, method, messages)

        assert "SCOPE_MISSING" in response
        assert method_options(method).scope.value in response
